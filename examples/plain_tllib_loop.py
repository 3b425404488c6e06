"""Divergence optimisation (CVPR 2021) as a script of tllib: its loop; our losses, label noise and evaluation.

    python examples/plain_tllib_loop.py data/office31 -d Office31 -s A -t D --noise pair --rate 0.2 -a resnet50 --scratch

The steps are those of the method ``divergence`` (examples/noisy_unida.py) with its preset ``default`` or ``code``.
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from tllib_ext import HeadMinimax, OpenSetEvaluator, SmallLossSelection, TargetSeparation
from tllib_ext.alignment.divergence import ImageClassifierHead, cross_divergence, unknown_by_divergence
from tllib_ext.compat import Missing, tllib, torchvision
from tllib_ext.methods.base import Prediction
from tllib_ext.tllib import noisy, universal
from tllib_ext.vision.hooks import route_downloads

try:
    tllib()  # supplies what tllib needs on current PyTorch; from here on its parts import as usual
except Missing as error:
    sys.exit(f"error: {error}")
from tllib.utils.data import ForeverDataIterator  # noqa: E402
from tllib.utils.logger import CompleteLogger  # noqa: E402
from tllib.utils.meter import AverageMeter, ProgressMeter  # noqa: E402
from tllib.vision import datasets, models  # noqa: E402

DELTA, ETA, REPEATS = 2.98, 0.05, 4  # border (about log 20), weight of the target's terms, repeats of Step C
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main(args):
    route_downloads(not args.no_download)
    logger = CompleteLogger(args.log)
    print(args)
    torch.manual_seed(args.seed)
    T, mean, std = torchvision().transforms, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    resize, end = T.Resize((256, 256)), [T.ToTensor(), T.Normalize(mean, std)]
    train_transform = T.Compose([resize, T.RandomHorizontalFlip(), T.RandomCrop(224), *end])
    val_transform = T.Compose([resize, T.CenterCrop(224), *end])
    data = datasets.__dict__[args.data]
    source_class, target_class = noisy(universal(data, "source"), args.noise, args.rate), universal(data, "target")
    source = source_class(args.root, args.source, transform=train_transform)
    target = target_class(args.root, args.target, transform=val_transform)
    print(target.label_split.table(), f"{source.is_flipped.mean():.1%} of the source labels are wrong", sep="\n")
    options = dict(batch_size=args.batch_size, num_workers=args.workers)
    source_iter = ForeverDataIterator(DataLoader(source, shuffle=True, drop_last=True, **options), device)
    target_iter = ForeverDataIterator(DataLoader(target, shuffle=True, drop_last=True, **options), device)
    val_loader = DataLoader(target, **options)
    G = models.__dict__[args.arch](pretrained=not args.scratch).to(device)  # feature extractor
    F1, F2 = (ImageClassifierHead(G.out_features, source.num_classes).to(device) for _ in range(2))
    optimizers, schedulers = get_optimizers(G, F1, F2, args)
    for epoch in range(args.epochs):
        train(source_iter, target_iter, G, F1, F2, *optimizers, schedulers, epoch, args)
        state = {"G": G.state_dict(), "F1": F1.state_dict(), "F2": F2.state_dict()}
        torch.save(state, logger.get_checkpoint_path("latest"))
        report = validate(val_loader, G, F1, F2, OpenSetEvaluator(target.label_split))
        print(f" * OS {report.os:.3f} OS* {report.os_star:.3f} UNK {report.unk:.3f} H-score {report.h_score:.3f}")
    print(report.table())
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the logger took both and would close them


def get_optimizers(G, F1, F2, args):
    rates = ([*G.parameters()], 0.1 * args.lr), ([*F1.parameters(), *F2.parameters()], args.lr)
    optimizers = [SGD(weights, lr, momentum=0.9, weight_decay=5e-4, nesterov=True) for weights, lr in rates]
    last = max(1, args.epochs * args.iters_per_epoch - (args.preset == "code"))
    return optimizers, [LambdaLR(each, lambda i: (1 + 10 * min(1, i / last)) ** -0.75) for each in optimizers]


def train(source_iter, target_iter, G, F1, F2, optimizer_g, optimizer_f, schedulers, epoch, args):
    losses, known_share = AverageMeter("Loss", ":5.2f"), AverageMeter("Known", ":4.2f")
    progress = ProgressMeter(args.iters_per_epoch, [losses, known_share], prefix=f"Epoch: [{epoch}]")
    code, steps = args.preset == "code", args.epochs * args.iters_per_epoch
    warm_up = 101 if code else min(101, round(0.04 * steps))  # iterations without selection and minimax
    plain, selection = SmallLossSelection(0.0, lam=0.0), SmallLossSelection(args.rate)
    separation = TargetSeparation(DELTA, clip=2.0, valid=2.0, entropy="mean_dist", ent_weight=0.5, eps=1e-5)
    minimax = HeadMinimax(DELTA, clamp=2.0, over="selected")
    G.train(), F1.train(), F2.train()
    for i in range(args.iters_per_epoch):
        x_s, labels_s = next(source_iter)[:2]
        (x_t,) = next(target_iter)[:1]  # its labels are for the evaluation alone
        F1.normalise_rows(), F2.normalise_rows()
        warm = epoch * args.iters_per_epoch + i < warm_up
        # Step A: G, F1 and F2 learn the source samples of small loss and separate the target
        f_s, f_t = G(x_s), G(x_t)
        y_s, y_t = (F1(f_s), F2(f_s)), (F1(f_t), F2(f_t))
        known = minimax.known(y_t)
        loss_s = (plain if warm else selection)(y_s, labels_s)
        loss_t = separation.parts(y_t)["ent"] if warm else separation(y_t)
        optimizer_g.zero_grad(), optimizer_f.zero_grad()
        (loss_s + ETA * loss_t).backward()
        optimizer_g.step(), optimizer_f.step()
        # Step B: F1 and F2 drift apart on the target, G is fixed
        if not warm:
            with torch.no_grad():
                f_t, f_s = G(x_t), G(x_s)
            optimizer_f.zero_grad()
            (selection((F1(f_s), F2(f_s)), labels_s) + ETA * minimax.apart((F1(f_t), F2(f_t)))).backward()
            optimizer_f.step()
        # Step C: G brings them together where the target looked known
        for _ in range(0 if warm or not (code or known.any()) else REPEATS):
            f_t = G(x_t)
            optimizer_g.zero_grad()
            (ETA * minimax.together((F1(f_t), F2(f_t)), known)).backward()
            optimizer_g.step()
        for scheduler in schedulers:
            scheduler.step()
        losses.update(loss_s.item(), len(x_s))
        known_share.update(known.float().mean().item(), len(x_t))
        if i % args.print_freq == 0:
            progress.display(i)


@torch.no_grad()
def validate(val_loader, G, F1, F2, evaluator):
    G.eval(), F1.eval(), F2.eval()
    for i, (images, labels) in enumerate(val_loader):
        f = G(images.to(device))
        y = F1(f), F2(f)
        prediction = Prediction(F.softmax(y[0], dim=1), cross_divergence(y), unknown_by_divergence(y, DELTA))
        evaluator.update(prediction, labels, i * val_loader.batch_size + torch.arange(len(labels)))
    return evaluator.compute()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="DIR", help="root of the data set, tllib's layout")
    parser.add_argument("-d", "--data", default="Office31", choices=["Office31"])
    parser.add_argument("-s", "--source", default="A", help="source domain")
    parser.add_argument("-t", "--target", default="D", help="target domain")
    parser.add_argument("--noise", default="pair", choices=["none", "pair", "symmetric"], help="of the source labels")
    parser.add_argument("--rate", type=float, default=0.2, help="of the noise; the dropped share of each batch")
    parser.add_argument("-a", "--arch", default="resnet50", help="a backbone of tllib")
    parser.add_argument("--scratch", action="store_true", help="train from random weights")
    parser.add_argument("--no-download", action="store_true", help="fetch neither weights nor data")
    parser.add_argument("--preset", default="default", choices=["default", "code"], help="of divergence")
    parser.add_argument("-b", "--batch-size", type=int, default=36)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("-i", "--iters-per-epoch", type=int, default=500)
    parser.add_argument("-p", "--print-freq", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="plain_tllib_loop")
    main(parser.parse_args())
