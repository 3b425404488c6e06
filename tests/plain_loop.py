"""``examples/plain_tllib_loop.py`` as a module, and its loop on given batches from a method's initial weights."""

import copy
import sys
from argparse import Namespace
from types import ModuleType

import torch
from conftest import load_example
from torch import nn

from tllib_ext.alignment.divergence import ImageClassifierHead


class Meter:
    """Stands for tllib's meters: nothing is printed."""

    def __init__(self, *words, **options):
        pass

    def update(self, value, n):
        pass

    def display(self, i):
        pass


def load_loop(monkeypatch):
    """The example; tllib's modules that it imports are empty but for the meters."""
    names = {"utils.data": "ForeverDataIterator", "utils.logger": "CompleteLogger", "utils.meter": "AverageMeter",
             "vision": "datasets", "": "__version__", "utils": "data"}  # fmt: skip
    for name, attribute in names.items():
        module = ModuleType(f"tllib.{name}".rstrip("."))
        setattr(module, attribute, Meter)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["tllib.utils.meter"].ProgressMeter = sys.modules["tllib.vision"].models = Meter
    return load_example("plain_tllib_loop")


def run_loop(loop, method, batches, preset, rate, lr=0.01, epochs=1):
    """The example's ``train()`` on batches (source, labels, target); returns its networks under the method's names."""
    net = copy.deepcopy(method.backbone)
    heads = [ImageClassifierHead(net.out_features, method.split.num_source, pool_layer=nn.Identity()) for _ in range(2)]
    for head, ours in zip(heads, method.heads.heads):
        head.head.load_state_dict(ours.state_dict())
    args = Namespace(preset=preset, rate=rate, lr=lr, epochs=epochs, iters_per_epoch=len(batches) // epochs, print_freq=10**9)
    optimizers, schedulers = loop.get_optimizers(net, *heads, args)
    source, target = iter([(s, y) for s, y, _ in batches]), iter([(t, torch.zeros(len(t))) for _, _, t in batches])
    for epoch in range(epochs):
        loop.train(source, target, net, *heads, *optimizers, schedulers, epoch, args)
    return {**{f"backbone.{name}": value for name, value in net.state_dict().items()},
            **{f"heads.heads.{k}.weight": head.head.weight.data for k, head in enumerate(heads)}}  # fmt: skip
