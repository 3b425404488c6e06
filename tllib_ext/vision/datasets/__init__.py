"""Data sets, views with label splits, simulated label noise, caches of decoded images and of features."""

from typing import TYPE_CHECKING, Callable

from tllib_ext.registry import Registry

if TYPE_CHECKING:
    from tllib_ext.vision.datasets.builder import Data, DataRequest
    from tllib_ext.vision.datasets.noises import Noise

__all__ = ["DATASETS", "NOISES"]

#: data sets by name: callables as :class:`~tllib_ext.vision.datasets.builder.DatasetBuilder` describes them.
#: Entry-point group ``tllib_ext.datasets``.
DATASETS: "Registry[Callable[[DataRequest], Data]]" = Registry(
    "dataset",
    {
        "Office31": ("tllib_ext.vision.datasets.benchmarks:office31", "Office-31 in tllib's layout: A, D, W"),
        "OfficeHome": ("tllib_ext.vision.datasets.benchmarks:office_home", "Office-Home in tllib's layout: Ar, Cl, Pr, Rw"),
        "VisDA2017": ("tllib_ext.vision.datasets.benchmarks:visda2017", "VisDA-2017 in tllib's layout: Synthetic, Real"),
        "DomainNet": ("tllib_ext.vision.datasets.domainnet:domainnet", "DomainNet in tllib's layout: c, i, p, q, r, s"),
        "Glyphs": ("tllib_ext.vision.datasets.glyphs:glyphs", "embedded: letters and digits in three styles, drawn when used"),
        "folder": ("tllib_ext.vision.datasets.folders:folder", "your own images: DIR/<domain>/<class>/<image>"),
        "features": ("tllib_ext.vision.datasets.folders:features", "your own features: DIR/<domain>.npz"),
    },
    import_paths=True,
    forms={
        "auto": "recognised from the files (default)",
        "package.module:Class": "your own: a DatasetBuilder, or a class of image lists, Class(root, task) or Class(folder)",
    },
)
DATASETS.register_prefix(
    "tllib",
    "tllib_ext.vision.datasets.benchmarks:from_tllib",
    "through tllib's own class",
    {name: f"{name} through tllib's own class" for name in ("Office31", "OfficeHome", "VisDA2017")},
)

_INSTANCE = "tllib_ext.vision.datasets.instance_noises"

#: kinds of simulated label noise: functions as :mod:`tllib_ext.vision.datasets.noises` describes them.
#: Entry-point group ``tllib_ext.noises``.
NOISES: "Registry[Noise]" = Registry(
    "noise",
    {
        "none": ("tllib_ext.vision.datasets.noises:none", "the given labels"),
        "pair": ("tllib_ext.vision.datasets.noises:pair", "class k becomes k + 1 with probability RATE"),
        "symmetric": ("tllib_ext.vision.datasets.noises:symmetric", "a class becomes any other with probability RATE"),
        "symmetric_inclusive": (
            "tllib_ext.vision.datasets.noises:symmetric_inclusive",
            "a label is drawn from all classes with probability RATE",
        ),
        "random_partner": (
            "tllib_ext.vision.datasets.noises:random_partner",
            "a class becomes one random other class with probability RATE",
        ),
        "part_dependent": (f"{_INSTANCE}:part_dependent", "the wrong class depends on the features (Xia et al. 2020)"),
        "pmd1": (f"{_INSTANCE}:pmd1", "wrong where a classifier's two first classes are close (type I, Zhang et al. 2021)"),
        "pmd2": (f"{_INSTANCE}:pmd2", "the same, type II"),
        "pmd3": (f"{_INSTANCE}:pmd3", "the same, type III"),
        "open_set": ("tllib_ext.vision.datasets.open_set:open_set", "images of no class have labels of known ones, a share RATE"),
        "runner_up": (f"{_INSTANCE}:runner_up", "random images have the label of their most probable wrong class"),
        "runner_up_hard": (f"{_INSTANCE}:runner_up_hard", "the hardest images have the label of their most probable wrong class"),
    },
    forms={"FILE.csv": "a row-stochastic transition matrix, rows are true classes", "FILE.npy": "the same as an array"},
)
