"""A small stand-in with tllib's signatures and the form of its example scripts, written for these tests."""

import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from tllib_ext.tllib import datasets as our_datasets
from tllib_ext.tllib import factories
from tllib_ext.vision.datasets.benchmarks import BENCHMARKS

CLASSES = list(BENCHMARKS["Office31"].classes)

TLLIB = {
    "tllib/__init__.py": "__version__ = '0.4'\n",
    "tllib/vision/__init__.py": "",
    "tllib/utils/__init__.py": "",
    "tllib/modules/__init__.py": "",
    "tllib/alignment/__init__.py": "",
    "tllib/vision/datasets/__init__.py": """
        from .imagelist import ImageList
        from .office31 import Office31
        __all__ = ["ImageList", "Office31"]
    """,
    "tllib/vision/datasets/imagelist.py": """
        import os
        from PIL import Image
        from torch.utils.data.dataset import Dataset, T_co  # T_co is a name that compat supplies

        def default_loader(path):
            return Image.open(path).convert("RGB")

        class ImageList(Dataset[T_co]):
            def __init__(self, root, classes, data_list_file, transform=None, target_transform=None):
                self.root, self.transform, self.target_transform = root, transform, target_transform
                self.samples, self.classes = self.parse_data_file(data_list_file), classes
                self.targets = [label for _, label in self.samples]
                self.class_to_idx = {name: label for label, name in enumerate(classes)}
                self.loader, self.data_list_file = default_loader, data_list_file

            def parse_data_file(self, file_name):
                rows = [line.rsplit(None, 1) for line in open(file_name)]
                return [(os.path.join(self.root, path), int(label)) for path, label in rows]

            def __getitem__(self, index):
                path, label = self.samples[index]
                image = self.loader(path)
                image = image if self.transform is None else self.transform(image)
                return image, label if self.target_transform is None else self.target_transform(label)

            def __len__(self):
                return len(self.samples)

            @property
            def num_classes(self):
                return len(self.classes)

            @classmethod
            def domains(cls):
                raise NotImplementedError
    """,
    "tllib/vision/datasets/office31.py": f"""
        import os
        from .imagelist import ImageList

        class Office31(ImageList):
            image_list = {{"A": "image_list/amazon.txt", "D": "image_list/dslr.txt", "W": "image_list/webcam.txt"}}
            CLASSES = {CLASSES!r}

            def __init__(self, root, task, download=True, **kwargs):
                super().__init__(root, self.CLASSES, os.path.join(root, self.image_list[task]), **kwargs)

            @classmethod
            def domains(cls):
                return list(cls.image_list)
    """,
    "tllib/vision/datasets/openset/__init__.py": """
        from ..imagelist import ImageList
        from ..office31 import Office31
        __all__ = ["Office31"]

        def open_set(dataset_class, public_classes, private_classes=()):
            class OpenSetDataset(dataset_class):
                def __init__(self, **kwargs):
                    super().__init__(**kwargs)
                    names = [*public_classes, "unknown"]
                    kept = [(path, self.classes[label]) for path, label in self.samples]
                    public = {name: label for label, name in enumerate(public_classes)}
                    self.samples = [(path, public.get(name, len(public))) for path, name in kept
                                    if name in public or name in private_classes]
                    self.classes = names
                    self.class_to_idx = {name: label for label, name in enumerate(names)}
            return OpenSetDataset

        def default_open_set(dataset_class, source):
            if dataset_class != Office31:
                raise NotImplementedError(dataset_class.__name__)
            return open_set(dataset_class, Office31.CLASSES[:20], () if source else Office31.CLASSES[20:])
    """,
    "tllib/vision/datasets/partial/__init__.py": """
        from ..imagelist import ImageList
        from ..office31 import Office31
        __all__ = ["Office31"]

        def partial(dataset_class, partial_classes):
            class PartialDataset(dataset_class):
                def __init__(self, **kwargs):
                    super().__init__(**kwargs)
                    self.samples = [row for row in self.samples if self.classes[row[1]] in partial_classes]
                    self.partial_classes = partial_classes
                    self.partial_classes_idx = [self.class_to_idx[name] for name in partial_classes]
            return PartialDataset

        def default_partial(dataset_class):
            if dataset_class != Office31:
                raise NotImplementedError(dataset_class.__name__)
            return partial(dataset_class, Office31.CLASSES[:10])
    """,
    "tllib/vision/models/__init__.py": """
        from torch import nn

        class Net(nn.Sequential):
            out_features = 8

        def resnet18(pretrained=False, **kwargs):
            return Net(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
    """,
    "tllib/modules/classifier.py": """
        from torch import nn

        class Classifier(nn.Module):
            def __init__(self, backbone, num_classes, bottleneck=None, bottleneck_dim=-1, head=None, finetune=True,
                         pool_layer=None):
                super().__init__()
                self.backbone, self.pool_layer = backbone, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
                self.head = nn.Linear(backbone.out_features, num_classes)

            def forward(self, x):
                f = self.pool_layer(self.backbone(x))
                return (self.head(f), f) if self.training else self.head(f)
    """,
    "tllib/alignment/osbp.py": """
        from tllib.modules.classifier import Classifier

        class ImageClassifier(Classifier):
            def forward(self, x, grad_reverse=False):
                return super().forward(x)
    """,
    "tllib/alignment/mcd.py": """
        from torch import nn

        class ImageClassifierHead(nn.Module):
            def __init__(self, in_features, num_classes, bottleneck_dim=1024, pool_layer=None):
                super().__init__()
                self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_features, num_classes))

            def forward(self, x):
                return self.head(x)
    """,
    "tllib/utils/data.py": """
        class ForeverDataIterator:
            def __init__(self, data_loader, device=None):
                self.data_loader, self.iter, self.device = data_loader, iter(data_loader), device

            def __next__(self):
                try:
                    return [part.to(self.device) for part in next(self.iter)]
                except StopIteration:
                    self.iter = iter(self.data_loader)
                    return next(self)
    """,
    "tllib/utils/meter.py": """
        class AverageMeter:
            def __init__(self, name, fmt=":f"):
                self.name, self.values = name, []

            def update(self, val, n=1):
                self.values.append(val)

        class ProgressMeter:
            def __init__(self, num_batches, meters, prefix=""):
                self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

            def display(self, batch):
                last = [f"{meter.name} {meter.values[-1]:.2f}" for meter in self.meters]
                print(f"{self.prefix}[{batch}/{self.num_batches}]", *last)
    """,
    "tllib/utils/logger.py": """
        import os, sys

        class TextLogger:
            def __init__(self, stream=sys.stdout):
                self.terminal = stream
            def write(self, text):
                self.terminal.write(text)
            def flush(self):
                self.terminal.flush()
            def close(self):
                self.terminal.close()

        class CompleteLogger:
            def __init__(self, root, phase="train"):
                self.checkpoint_directory = os.path.join(root, "checkpoints")
                os.makedirs(self.checkpoint_directory, exist_ok=True)
                self.logger = sys.stdout = sys.stderr = TextLogger()
            def get_checkpoint_path(self, name=None):
                return os.path.join(self.checkpoint_directory, f"{name}.pth")
            def close(self):
                self.logger.close()
    """,
}

#: what tllib's scripts have in common
COMMON = """
    import argparse, shutil, sys
    import torch, torch.nn.functional as F
    from torch.utils.data import DataLoader
    import utils
    from tllib.utils.logger import CompleteLogger

    def arguments(nargs=None):
        parser = argparse.ArgumentParser()
        parser.add_argument("root")
        parser.add_argument("-d", "--data", default="Office31", choices=utils.get_dataset_names())
        parser.add_argument("-s", "--source", nargs=nargs)
        parser.add_argument("-t", "--target", nargs=nargs)
        parser.add_argument("-a", "--arch", default="resnet18")
        parser.add_argument("--scratch", action="store_true")
        for flag, default in (("-b/--batch-size", 8), ("-j/--workers", 0), ("--epochs", 1), ("-i/--iters-per-epoch", 2),
                              ("--seed", None)):
            parser.add_argument(*flag.split("/"), type=int, default=default)
        parser.add_argument("--log", default="log")
        parser.add_argument("--best", action="store_true", help="save a best checkpoint")
        return parser.parse_args()

    def start(args):
        logger = CompleteLogger(args.log)
        torch.manual_seed(args.seed or 0)
        data = utils.get_dataset(args.data, args.root, args.source, args.target, utils.train_transform, utils.val_transform)
        source, target, val, num_classes, args.class_names = data
        loaders = [DataLoader(d, args.batch_size, shuffle=True, drop_last=True) for d in (source, target)]
        return logger, [iter(loader) for loader in loaders], DataLoader(val, args.batch_size), num_classes

    def end(args, logger, state, load):
        torch.save(state, logger.get_checkpoint_path("latest"))
        if args.best:
            with torch.no_grad():
                worse = torch.load(logger.get_checkpoint_path("latest"))
            torch.save({k: {n: 0 * v for n, v in s.items()} if isinstance(s, dict) else 0 * s for k, s in worse.items()},
                       logger.get_checkpoint_path("best"))
        load(torch.load(logger.get_checkpoint_path("best")))
        print("test_acc1 = 0.0")
        logger.close()
"""
UTILS = """
    import torchvision.transforms as T
    import tllib.vision.datasets{part} as datasets
    import tllib.vision.models as models
    {factory}
    train_transform = T.Compose([T.Resize((16, 16)), T.RandomHorizontalFlip(), T.ToTensor()])
    val_transform = T.Compose([T.Resize((16, 16)), T.ToTensor()])

    def get_dataset_names():
        return sorted(name for name in vars(datasets) if not name.startswith("__") and callable(vars(datasets)[name]))
"""
EXAMPLES = {
    "image_classification/utils.py": UTILS.format(part="", factory="")
    + """
    def get_dataset(name, root, source, target, train, val):
        from torch.utils.data import ConcatDataset
        dataset = vars(datasets)[name]
        def concat(tasks, transform):
            return ConcatDataset([dataset(task=task, root=root, download=True, transform=transform) for task in tasks])
        first = concat(source, train)
        names = first.datasets[0].classes
        return first, concat(target, train), concat(target, val), len(names), names
    """,
    "image_classification/common.py": COMMON,
    "image_classification/erm.py": """
        from common import *
        from tllib.modules.classifier import Classifier
        if __name__ == "__main__":
            args = arguments("+")
            logger, (source, target), val, num_classes = start(args)
            net = Classifier(utils.models.__dict__[args.arch](pretrained=not args.scratch), num_classes)
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            print("target labels in training:", sorted(set(next(target)[1].tolist())))
            for _ in range(args.iters_per_epoch):
                x, y = next(source)
                optimizer.zero_grad(); F.cross_entropy(net.train()(x)[0], y).backward(); optimizer.step()
            net.eval()
            seen = 0
            for x, y in val:
                F.cross_entropy(net(x), y)
                seen += (y >= 0).sum().item()
            print("classes", num_classes, "validated on", seen, "labelled images of", len(val.dataset))
            end(args, logger, net.state_dict(), net.load_state_dict)
    """,
    "image_classification/mcd.py": """
        from common import *
        from tllib.alignment.mcd import ImageClassifierHead
        if __name__ == "__main__":
            args = arguments("+")
            logger, (source, target), val, num_classes = start(args)
            G = utils.models.__dict__[args.arch](pretrained=not args.scratch)
            F1, F2 = (ImageClassifierHead(G.out_features, num_classes) for _ in range(2))
            G.eval(); F1.eval(); F2.eval()
            state = {"G": G.state_dict(), "F1": F1.state_dict(), "F2": F2.state_dict()}
            def load(state):
                for net, part in zip((G, F1, F2), state.values()):
                    net.load_state_dict(part)
            end(args, logger, state, load)
    """,
    "openset_domain_adaptation/utils.py": UTILS.format(
        part=".openset", factory="from tllib.vision.datasets.openset import default_open_set as open_set"
    )
    + """
    def get_dataset(name, root, source, target, train, val):
        dataset = vars(datasets)[name]
        first, second = open_set(dataset, source=True), open_set(dataset, source=False)
        made = [cls(root=root, task=task, download=True, transform=transform)
                for cls, task, transform in ((first, source, train), (second, target, train), (second, target, val))]
        return *made, len(made[0].classes), made[0].classes
    """,
    "openset_domain_adaptation/common.py": COMMON,
    "openset_domain_adaptation/osbp.py": """
        from common import *
        from tllib.alignment.osbp import ImageClassifier
        if __name__ == "__main__":
            args = arguments()
            logger, (source, target), val, num_classes = start(args)
            net = ImageClassifier(utils.models.__dict__[args.arch](pretrained=not args.scratch), num_classes).eval()
            print("target labels in training:", sorted(set(next(target)[1].tolist())))
            print("classes", num_classes, "unknown", sum(y.eq(num_classes - 1).sum().item() for _, y in val))
            end(args, logger, net.state_dict(), net.load_state_dict)
    """,
    "partial_domain_adaptation/utils.py": UTILS.format(
        part=".partial", factory="from tllib.vision.datasets.partial import default_partial as partial"
    )
    + """
    def get_dataset(name, root, source, target, train, val):
        dataset = vars(datasets)[name]
        made = [cls(root=root, task=task, download=True, transform=transform)
                for cls, task, transform in ((dataset, source, train), (partial(dataset), target, train),
                                             (partial(dataset), target, val))]
        return *made, len(made[0].classes), made[0].classes
    """,
    "partial_domain_adaptation/common.py": COMMON,
    "partial_domain_adaptation/erm.py": """
        from common import *
        from tllib.modules.classifier import Classifier
        if __name__ == "__main__":
            args = arguments()
            logger, (source, target), val, num_classes = start(args)
            net = Classifier(utils.models.__dict__[args.arch](pretrained=not args.scratch), num_classes).eval()
            print("classes", num_classes, "target holds", len(val.dataset.partial_classes_idx), "of them")
            end(args, logger, net.state_dict(), net.load_state_dict)
    """,
}


EXAMPLES["image_classification/dann.py"] = EXAMPLES["image_classification/erm.py"]


def write_standin(root):
    """The stand-in and its scripts below ``root``, as a checkout of tllib has them."""
    files = {**TLLIB, **{f"examples/domain_adaptation/{name}": text for name, text in EXAMPLES.items()}}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text))
    return root


def write_office31(root, each=3):
    """31 classes of coloured squares in the layout of Office-31."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 200, (len(CLASSES), 3))
    (root / "image_list").mkdir(parents=True)
    for domain in ("amazon", "dslr", "webcam"):
        lines = []
        for label, name in enumerate(CLASSES):
            (root / domain / "images" / name).mkdir(parents=True)
            for i in range(each):
                path = f"{domain}/images/{name}/{i}.png"
                pixels = colours[label] + rng.integers(0, 40, (16, 16, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(root / path)
                lines.append(f"{path} {label}\n")
        (root / "image_list" / f"{domain}.txt").write_text("".join(lines))
    return root


def forget_tllib():
    """As if tllib had never been imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tllib"]:
        del sys.modules[name]
    our_datasets.dataset_class.cache_clear()
    factories._make.cache_clear()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A checkout of the stand-in."""
    return write_standin(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def office31(tmp_path_factory):
    """A small Office-31."""
    return write_office31(tmp_path_factory.mktemp("office31") / "data")


@pytest.fixture
def tllib(checkout, monkeypatch):
    """The stand-in as the tllib of this process."""
    from tllib_ext import compat

    forget_tllib()
    monkeypatch.syspath_prepend(str(checkout))
    yield compat.tllib()
    forget_tllib()
