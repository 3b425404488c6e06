"""Run one of tllib's example scripts, unmodified, on current PyTorch and numpy.

    python -m tllib_ext.tllib [--download] SCRIPT [its arguments …]

    python -m tllib_ext.tllib Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py \\
        data/office31 -d Office31 -s A -t D -a resnet18 --scratch --epochs 1

Pretrained weights and data that are not on this machine are fetched only with --download; --scratch is tllib's flag for
random weights.
tllib is taken from the Python path, or from the checkout that SCRIPT lies in. Its registries also get our data and
backbones: ``-d Glyphs`` (domains print, hand, scene; drawn into the root at the first use), ``-d folder``
(root/domain/class/image) and ``-a small_cnn`` or ``mobilenet_v2``. Glyphs and small_cnn are made for small pictures
that are not mirrored:

    … dann.py data/glyphs -d Glyphs -s print -t hand -a small_cnn --no-hflip \\
        --train-resizing res. --val-resizing res. --resize-size 32
"""

import multiprocessing
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any, List, Optional, Sequence
from urllib.error import URLError

from torch import Tensor, nn

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.vision.datasets import glyphs
from tllib_ext.vision.datasets.builder import find_domain
from tllib_ext.vision.datasets.folders import folder
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.types import Sample
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.backbones import build_backbone

__all__ = ["GlyphsList", "FolderList", "FeatureMap", "backbone", "register", "run", "main"]


class GlyphsList:
    """What makes tllib's ``ImageList`` the Glyphs data set; :func:`register` puts the two together.

    ``task`` is a domain by name, letter or beginning; ``download`` draws the pictures into ``root`` if they are not there.
    """

    CLASSES = list(glyphs.CLASSES)

    def __init__(self, root: str, task: str, download: Optional[bool] = True, **kwargs: Any):
        domain = find_domain(task, self.domains(), glyphs.DOMAINS)
        if download:
            glyphs.write_glyphs(root)
        file = Path(root, "image_list", f"{domain}.txt")
        super().__init__(root, self.CLASSES, data_list_file=str(file), **kwargs)  # type: ignore[call-arg]

    @classmethod
    def domains(cls) -> List[str]:
        """All domains, as tllib's data sets list them."""
        return list(glyphs.DOMAINS.values())


class FolderList:
    """What makes tllib's ``ImageList`` read ``root/domain/class/image``; :func:`register` puts the two together.

    The labels are those of all class folders of all domains, so that every task counts alike.
    """

    def __init__(self, root: str, task: str, download: Optional[bool] = True, **kwargs: Any):
        domains = folder.domains(folder.folder(root, "folder"))
        domain = find_domain(task, domains)
        classes = sorted({name for place in domains for name in _classes(Path(root, place))})
        self._samples = ImageFolder(Path(root, domain), classes).samples
        if self._samples[0][1] is None:
            raise UserError(f"{domain} has no class folders, and tllib's scripts need labels: expected {folder.layout}")
        super().__init__(root, classes, data_list_file=str(Path(root, domain)), **kwargs)  # type: ignore[call-arg]

    def parse_data_file(self, file_name: str) -> List[Sample]:
        """tllib's hook for reading a list file; here it is what was found in the folders."""
        return self._samples


def _classes(place: Path) -> List[str]:
    try:
        return ImageFolder(place).classes
    except UserError:  # a folder without images, e.g. of lists or logs, beside the domains
        return []


class FeatureMap(nn.Module):
    r"""A backbone of ours as tllib's classifiers expect one: a map, which their pooling layer averages.

    Args:
        net (torch.nn.Module): backbone with ``out_features``
        num_classes (int, optional): width of a head made by :meth:`copy_head`. Default: 1000

    Shape:
        - Outputs: :math:`(N, F, 1, 1)` where ``net`` gives :math:`(N, F)`

    Examples::

        >>> import torch
        >>> backbone("small_cnn")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 128, 1, 1])
    """

    def __init__(self, net: nn.Module, num_classes: int = 1000):
        super().__init__()
        self.net, self.num_classes = net, num_classes
        self.out_features: Any = net.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, :, None, None]

    def copy_head(self) -> nn.Linear:
        """A new linear layer: our backbones keep no classifier that could be copied."""
        return nn.Linear(self.out_features, self.num_classes)


def backbone(name: str, pretrained: bool = False, progress: bool = True, **kwargs: Any) -> FeatureMap:
    """A backbone of ours with the arguments of tllib's; as there, ``pretrained`` fetches weights that are not here."""
    return FeatureMap(build_backbone(name, "default" if pretrained else None, download=pretrained), **kwargs)


def register() -> None:
    """Add ours to ``tllib.vision.datasets`` and ``tllib.vision.models``; a name that tllib has stays tllib's."""
    datasets, models = compat.tllib("vision.datasets"), compat.tllib("vision.models")
    for name, reader in (("Glyphs", GlyphsList), ("folder", FolderList)):
        setattr(datasets, name, type(name, (reader, datasets.ImageList), {"__module__": datasets.__name__}))
    for name in BACKBONES:
        if not hasattr(models, name):
            setattr(models, name, partial(backbone, name))


def run(script: str, arguments: Sequence[str], download: bool = False) -> None:
    """Run ``script`` as ``python script arguments…`` would, with tllib made importable and our names registered.

    Args:
        script (str): path of the script
        arguments (sequence of str): its words
        download (bool): let it fetch weights and data that are not on this machine
    """
    path = Path(script)
    if not path.is_file():
        example = "Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py"
        raise UserError(f"no script {script}: give the path of one of tllib's examples, e.g. {example}")
    folders = path.resolve().parents
    sys.path.insert(0, str(folders[0]))
    sys.path += [str(folder) for folder in folders if (folder / "tllib" / "__init__.py").is_file()]
    register()
    if "fork" in multiprocessing.get_all_start_methods():
        # a worker that is not a copy of this process would import tllib anew, without the names supplied here
        multiprocessing.set_start_method("fork", force=True)
    if not download:
        compat.forbid_downloads("allow the download (--download before the script), or use --scratch in place of weights")
    streams = sys.stdout, sys.stderr
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except ModuleNotFoundError as cause:
        raise compat.Missing(script, cause) from cause
    except URLError as error:
        raise UserError(
            f"a download of {script} failed: {error.reason}; try again, or train without weights (--scratch)"
        ) from None
    # tllib's logger closes stdout and stays in its place; flushing it at exit would turn success into exit code 120
    sys.stdout, sys.stderr = streams


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    download = words[:1] == ["--download"]
    script, *arguments = words[download:] or ["--help"]
    if script in ("-h", "--help"):
        print(__doc__)
        return 0
    stderr = sys.stderr
    try:
        run(script, arguments, download)
    except UserError as error:
        print(f"error: {error}", file=stderr)
        sys.exit(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
