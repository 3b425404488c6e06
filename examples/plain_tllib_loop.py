"""The paper's losses, label noise and open-set evaluation inside an ordinary tllib script: no framework of ours.

    python examples/plain_tllib_loop.py data/office31 -d Office31 -s A -t D --noise pair --rate 0.2 -a resnet50 --scratch

Without --scratch the weights must be on this machine, or be fetched with --download.

Iterators, meters, logger, data sets and backbones are tllib's. Ours are the wrapper of the source list, the losses on
the logits of two heads and the evaluator; any other tllib script can take the same lines. For everything else that a
run needs (checkpoints, presets, several processes, frozen features) see examples/noisy_unida.py.
"""

import argparse
import math
import sys
from typing import Any, List

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from tllib_ext.alignment.divergence import SeparationLoss, SmallLossSelection, cross_divergence
from tllib_ext.compat import forbid_downloads, tllib, torchvision
from tllib_ext.errors import UserError
from tllib_ext.evaluation.openset import OpenSetEvaluator, OpenSetReport
from tllib_ext.methods.base import Prediction
from tllib_ext.modules.heads import Heads
from tllib_ext.split import PRESETS
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.universal import UniversalView

try:
    tllib()  # supplies what tllib needs on current PyTorch; from here on its parts import as usual
except UserError as error:
    sys.exit(f"error: {error}")
from tllib.utils.data import ForeverDataIterator  # noqa: E402
from tllib.utils.logger import CompleteLogger  # noqa: E402
from tllib.utils.meter import AverageMeter, ProgressMeter  # noqa: E402
from tllib.vision import datasets, models  # noqa: E402

ETA, REPEATS, WARM_UP = 0.05, 4, 0.02  # weight of the target terms, repeats of Step C, share of the run: the authors' code
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    """Data, networks, optimisers, then epochs of training and evaluation."""
    if not args.download:
        forbid_downloads("allow the download (--download), or use --scratch in place of weights")
    logger = CompleteLogger(args.log)
    print(args)
    torch.manual_seed(args.seed)
    T = torchvision().transforms
    resize, norm = T.Resize((256, 256)), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train_tf = T.Compose([resize, T.RandomHorizontalFlip(), T.RandomCrop(224), T.ToTensor(), norm])
    test_tf = T.Compose([resize, T.CenterCrop(224), T.ToTensor(), norm])

    data, split = getattr(datasets, args.data), PRESETS[args.data]
    source = UniversalView(data(args.root, args.source, download=True), split, "source", train_tf)  # download: if absent
    source = NoisyLabels(source, args.noise, args.rate)
    target = UniversalView(data(args.root, args.target, download=True), split, "target", test_tf)
    print(split.table(), f"{source.realised_rate:.1%} of the source labels are wrong", sep="\n")
    loading = dict(batch_size=args.batch_size, num_workers=args.workers)
    source_iter, target_iter = (ForeverDataIterator(DataLoader(view, shuffle=True, drop_last=True, **loading), device)
                                for view in (source, target))  # fmt: skip
    test_loader = DataLoader(target, **loading)

    backbone = getattr(models, args.arch)(pretrained=not args.scratch)
    G = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten()).to(device)
    C = Heads(backbone.out_features, split.num_source).to(device)  # two cosine heads
    sgd = dict(momentum=0.9, weight_decay=5e-4, nesterov=True)
    optimizers = [SGD(G.parameters(), 0.1 * args.lr, **sgd), SGD(C.parameters(), args.lr, **sgd)]
    total = args.epochs * args.iters_per_epoch
    schedulers = [LambdaLR(optimizer, lambda i: (1 + 10 * i / total) ** -0.75) for optimizer in optimizers]

    for epoch in range(args.epochs):
        train(source_iter, target_iter, G, C, optimizers, schedulers, math.log(split.num_source), epoch, args)
        torch.save({"G": G.state_dict(), "C": C.state_dict()}, logger.get_checkpoint_path("latest"))
        report = validate(test_loader, G, C, OpenSetEvaluator(split), math.log(split.num_source))
        print(f" * OS {report.os:.3f} OS* {report.os_star:.3f} UNK {report.unk:.3f} H-score {report.h_score:.3f}")
    print(report.table())
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the logger took both, and its close() would close them


def train(source_iter: Any, target_iter: Any, G: nn.Module, C: Heads, optimizers: List[SGD], schedulers: List[LambdaLR],
          delta: float, epoch: int, args: argparse.Namespace) -> None:  # fmt: skip
    """Steps A, B, C of the paper, with the weight, warm-up and clamp of its authors' code."""
    losses, known_share = AverageMeter("Loss", ":5.2f"), AverageMeter("Known", ":4.2f")
    progress = ProgressMeter(args.iters_per_epoch, [losses, known_share], prefix=f"Epoch: [{epoch}]")
    plain, select, separate = SmallLossSelection(0.0, lam=0.0), SmallLossSelection(args.rate), SeparationLoss(delta)

    def step(loss: Tensor, *chosen: SGD) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in chosen:
            optimizer.step()

    G.train(), C.train()
    for i in range(args.iters_per_epoch):
        x_s, labels_s = next(source_iter)
        x_t, _ = next(target_iter)  # the labels are for the evaluation only
        C.normalise_rows()
        warm = epoch * args.iters_per_epoch + i < WARM_UP * args.epochs * args.iters_per_epoch
        # Step A: everybody learns the source samples of small loss and separates the target
        loss = (plain if warm else select)(C(G(x_s)), labels_s)
        logits_t = C(G(x_t))
        known = cross_divergence(logits_t).detach() < delta - 1
        step(loss + ETA * separate(logits_t), *optimizers)
        if not warm:
            # Step B: the heads drift apart on the target
            with torch.no_grad():
                f_s, f_t = G(x_s), G(x_t)
            apart = cross_divergence(C(f_t)).clamp(max=2 * delta).mean()
            step(select(C(f_s), labels_s) - ETA * apart, optimizers[1])
            # Step C: G brings them together where the target looks known
            for _ in range(REPEATS if known.any() else 0):
                step(ETA * cross_divergence(C(G(x_t)))[known].clamp(max=2 * delta).mean(), optimizers[0])
        for scheduler in schedulers:
            scheduler.step()
        losses.update(loss.item(), len(x_s))
        known_share.update(known.float().mean().item(), len(x_t))
        if i % args.print_freq == 0:
            progress.display(i)


@torch.no_grad()
def validate(loader: DataLoader, G: nn.Module, C: Heads, evaluator: OpenSetEvaluator, delta: float) -> OpenSetReport:
    """Every open-set number of the target; the last epoch counts, not the best one."""
    G.eval(), C.eval()
    seen = 0
    for images, labels in loader:
        logits = C(G(images.to(device)))
        crs = cross_divergence(logits)
        prediction = Prediction(F.softmax(logits[0], dim=1), crs, crs > delta)
        evaluator.update(prediction, labels, torch.arange(seen, seen + len(labels)))
        seen += len(labels)
    return evaluator.compute()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="DIR", help="root of the data set, tllib's layout")
    parser.add_argument("-d", "--data", default="Office31", choices=["Office31"])
    parser.add_argument("-s", "--source", default="A", help="source domain")
    parser.add_argument("-t", "--target", default="D", help="target domain")
    parser.add_argument("--noise", default="pair", choices=["none", "pair", "symmetric"], help="label noise of the source")
    parser.add_argument("--rate", type=float, default=0.2, help="its rate, also the dropped share of each batch")
    parser.add_argument("-a", "--arch", default="resnet50", help="a backbone of tllib")
    parser.add_argument("--scratch", action="store_true", help="train from random weights")
    parser.add_argument("--download", action="store_true", help="fetch weights and data that are not on this machine")
    parser.add_argument("-b", "--batch-size", type=int, default=36)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("-i", "--iters-per-epoch", type=int, default=500)
    parser.add_argument("-p", "--print-freq", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="plain_tllib_loop")
    main(parser.parse_args())
