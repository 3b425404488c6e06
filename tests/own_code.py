"""What a user might write: backbones and data sets of their own, named ``own_code:NAME`` in tests."""

import os

from torch import nn

from tllib_ext.images import load_image
from tllib_ext.vision.datasets.folders import FolderData


class Tiny(nn.Module):
    """A backbone that takes no arguments."""

    def __init__(self):
        super().__init__()
        self.out_features = 6
        self.body = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.body(x)


def tiny(pretrained=False, width=6):
    """A function like torchvision's; pretrained weights are all ones."""
    net = Tiny()
    if pretrained:
        nn.init.ones_(net.body[0].weight)
    return net


def broken():
    raise RuntimeError("no such layer\nat all")


def no_width():
    return nn.ReLU()


class Pictures:
    """A list in tllib's form."""

    def __init__(self, root, task, download=False):
        folder = os.path.join(root, task)
        self.classes, self.loader = sorted(os.listdir(folder)), load_image
        self.samples = [
            (os.path.join(folder, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(folder, name)))
        ]

    @classmethod
    def domains(cls):
        return ["photo", "sketch"]

    def __len__(self):
        return len(self.samples)


class OneFolder(Pictures):
    """The same, of the folder of one domain."""

    domains = None

    def __init__(self, folder):
        super().__init__(os.path.dirname(folder), os.path.basename(folder))


class Builder(FolderData):
    """A builder of this package's form."""


class Unfinished:
    def __init__(self, folder):
        self.samples = []
