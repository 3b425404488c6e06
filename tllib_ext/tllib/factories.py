"""Class factories in the form of tllib's ``open_set()``: label noise and universal label sets.

Both keep what a script of tllib reads: ``samples``, ``targets``, ``classes``, ``class_to_idx``,
``num_classes``, ``domains()``, ``image_list``. Their classes and instances can be pickled, so that loader
processes work however they start; the classes of tllib's factories cannot.
"""

import importlib
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from typing import Any, Dict, List, Optional, Sequence, SupportsIndex, Tuple, Union, cast

import numpy as np

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS, SCENARIOS, LabelSplit
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.types import ImageListLike, View
from tllib_ext.vision.datasets.universal import UniversalView

__all__ = ["Noise", "Recipe", "Relabelled", "known_split", "noisy", "resolve_split", "universal",
           "with_noise"]  # fmt: skip

ROLES = ("source", "target")


@dataclass(frozen=True)
class Noise:
    """A simulated label noise: the arguments of :class:`~tllib_ext.vision.datasets.noisy.NoisyLabels`."""

    kind: str = "pair"
    rate: float = 0.2
    seed: int = 0
    mode: str = "iid"
    options: Tuple[Tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What a class of :func:`noisy` or :func:`universal` does with the images of ``base``.

    Args:
        base (type): data set class without noise and with its own labels
        role (str, optional): ``"source"`` or ``"target"`` of a label split; None keeps all classes
        split (LabelSplit or str, optional): the split; None is the benchmark's
        unknown_class (bool): whether the classes of a source end with "unknown", which has no samples there
        noise (Noise, optional): drawn last, on the labels of the split
    """

    base: type
    role: Optional[str] = None
    split: Union[None, str, LabelSplit] = None
    unknown_class: bool = False
    noise: Optional[Noise] = None


class Relabelled:
    """What :func:`noisy` and :func:`universal` put in front of a data set class; :attr:`recipe` says how it was made."""

    recipe: Recipe
    samples: List[Tuple[str, int]]
    targets: List[int]
    classes: List[str]
    class_to_idx: Dict[str, int]
    #: the label sets; None where all classes are kept
    label_split: Optional[LabelSplit]
    #: true labels and what was flipped, in list order
    clean_targets: np.ndarray
    is_flipped: np.ndarray

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        view = _view(cast(ImageListLike, self), self.recipe)
        self.label_split = view.split if self.recipe.role is not None else None
        # The sources of tllib's open_set() have a class "unknown" without samples: it keeps its place after the others.
        unknown_class = self.recipe.unknown_class or (self.recipe.role is None and self.classes[-1] == "unknown")
        self.samples = [(path, int(label)) for path, label in view.samples if label is not None]
        self.targets = [label for _, label in self.samples]
        self.classes = [*view.classes, *["unknown"] * unknown_class]
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.clean_targets = getattr(view, "clean_targets", np.array(self.targets))
        self.is_flipped = self.clean_targets != np.array(self.targets)

    def __copy__(self) -> "Relabelled":
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __reduce_ex__(self, protocol: SupportsIndex) -> Union[str, Tuple[object, ...]]:
        if "recipe" not in vars(type(self)):  # a class that was made of ours, e.g. by tllib's partial()
            return super().__reduce_ex__(protocol)
        base, *rest = (getattr(self.recipe, field.name) for field in fields(Recipe))
        if "<locals>" in base.__qualname__:  # pickle cannot find the class, and says so
            return super().__reduce_ex__(protocol)
        return _blank, (base.__module__, base.__qualname__, *rest), vars(self)


def noisy(
    dataset_class: type, noise: str = "pair", rate: float = 0.2, seed: int = 0, mode: str = "iid", **options: object
) -> type:
    r"""Convert a data set into its version with wrong labels, drawn as by
    :class:`~tllib_ext.vision.datasets.noisy.NoisyLabels`.

    Noise is drawn on the labels of the split: ``noisy(universal(C, "source"))`` and
    ``universal(noisy(C), "source")`` are the same class. It belongs on the source; noise on a target is an error.

    Args:
        dataset_class (class): with ``samples``, ``classes`` and ``loader``, e.g. tllib's ``Office31``
        noise (str, optional): a kind that ``tllib-ext list noises`` names, or a transition matrix in a file.
            Default: "pair"
        rate (float, optional): expected share of wrong labels. Default: 0.2
        seed (int, optional): of the draw alone. Default: 0
        mode (str, optional): ``"iid"``, or ``"exact"`` for exactly round(rate x n) of each class. Default:
            "iid"
        options: further arguments of the noise

    Examples::

        >>> class Pets:
        ...     loader = open
        ...     def __init__(self, root):
        ...         self.samples = [(f"{k}.png", k % 4) for k in range(400)]
        ...         self.classes = ["ant", "bee", "cat", "dog"]
        >>> dataset = noisy(Pets, "pair", rate=0.25)("data/pets")
        >>> dataset.classes, dataset.is_flipped.mean().item()
        (['ant', 'bee', 'cat', 'dog'], 0.23)
        >>> type(dataset).__name__, isinstance(dataset, Pets)
        ('NoisyPets', True)
    """
    return with_noise(dataset_class, Noise(noise, float(rate), seed, mode, tuple(sorted(options.items()))))


def with_noise(dataset_class: type, noise: Noise) -> type:
    """:func:`noisy` with its arguments in one object."""
    recipe = _recipe(dataset_class)
    if recipe.noise is not None:
        raise UserError(f"{dataset_class.__name__} has noisy labels already: draw label noise once")
    if recipe.role == "target":
        raise UserError(f"{dataset_class.__name__} is a target: label noise belongs on the source")
    return _make(replace(recipe, noise=noise))


def universal(dataset_class: type, role: str, split: Union[None, str, LabelSplit] = None, unknown_class: bool = False) -> type:
    r"""Convert a data set into the source or the target of universal label sets.

    The source has the shared and the source-private classes, labels :math:`0..K-1`; the target has the shared
    classes and the target-private ones, which are the one class ``"unknown"`` with label :math:`K`. Samples
    of all other classes are left out.

    Args:
        dataset_class (class): with ``samples``, ``classes`` and ``loader``, e.g. tllib's ``Office31``
        role (str): ``"source"`` or ``"target"``
        split (LabelSplit or str, optional): shared/source private/target private classes, e.g. ``"10/10/11"``
            in the order of ``classes``, or a preset's name. Default: the benchmark's, for Office31,
            OfficeHome, VisDA2017 and DomainNet
        unknown_class (bool, optional): let the classes of the source end with "unknown" too, for a classifier
            with an output for it, such as OSBP's. Default: False

    Examples::

        >>> class Pets:
        ...     loader = open
        ...     def __init__(self, root):
        ...         self.samples = [(f"{k}.png", k % 4) for k in range(8)]
        ...         self.classes = ["ant", "bee", "cat", "dog"]
        >>> source, target = (universal(Pets, role, "2/1/1")("data/pets") for role in ("source", "target"))
        >>> source.classes, target.classes
        (['ant', 'bee', 'cat'], ['ant', 'bee', 'cat', 'unknown'])
        >>> target.samples
        [('0.png', 0), ('1.png', 1), ('3.png', 3), ('4.png', 0), ('5.png', 1), ('7.png', 3)]
    """
    recipe = _recipe(dataset_class)
    if role not in ROLES:
        raise UserError(f"role {role!r}: expected source or target")
    if recipe.role is not None:
        raise UserError(f"{dataset_class.__name__} is a {recipe.role} already: split its classes once")
    if role == "target" and recipe.noise is not None:
        raise UserError(f"{dataset_class.__name__} has noisy labels: label noise belongs on the source, not on a target")
    if split is None and known_split(recipe.base) is None:
        known = ", ".join(SCENARIOS)
        raise UserError(f"no label split of {recipe.base.__name__} is known (only of {known}): give split, e.g. '10/10/11'")
    return _make(replace(recipe, role=role, split=split, unknown_class=unknown_class and role == "source"))


def known_split(dataset_class: type) -> Union[None, str, LabelSplit]:
    """The label split of a benchmark, by the name of its class or of a class that it derives from; else None."""
    for name in (cls.__name__ for cls in dataset_class.__mro__):
        if name in PRESETS:
            return PRESETS[name]
        if name in SCENARIOS:
            return f"{name}:universal"
    return getattr(dataset_class, "SPLIT", None)


def resolve_split(split: Union[None, str, LabelSplit], dataset_class: type, classes: Sequence[str]) -> LabelSplit:
    """The label split that :func:`universal` was given, or the known one, over the names ``classes``."""
    wanted = split if split is not None else known_split(dataset_class)
    return wanted if isinstance(wanted, LabelSplit) else LabelSplit.parse(str(wanted), classes)


def _recipe(dataset_class: type) -> Recipe:
    if not isinstance(dataset_class, type):
        raise UserError(f"expected a data set class, e.g. Office31, found {type(dataset_class).__name__}")
    recipe = vars(dataset_class).get("recipe")
    if recipe is None and issubclass(dataset_class, Relabelled):
        raise UserError(f"{dataset_class.__name__} was made of a noisy or universal class: apply noisy() and universal() last")
    return recipe or Recipe(dataset_class)


@lru_cache(maxsize=None)
def _make(recipe: Recipe) -> type:
    name = f"{'Noisy' * bool(recipe.noise)}{'Universal' * bool(recipe.role)}{recipe.base.__name__}{(recipe.role or '').title()}"
    return type(name, (Relabelled, recipe.base), {"recipe": recipe, "__module__": __name__, "__doc__": recipe.base.__doc__})


def _view(dataset: ImageListLike, recipe: Recipe) -> View:
    """The images and labels of the recipe."""
    lacking = [name for name in ("samples", "classes", "loader") if not hasattr(dataset, name)]
    if lacking:
        raise UserError(f"{recipe.base.__name__} has no {' and no '.join(lacking)}: expected a data set of tllib's form")
    if recipe.role is None:
        names = dataset.classes[:-1] if dataset.classes[-1] == "unknown" else dataset.classes
        split = LabelSplit(tuple(names))
    else:
        split = resolve_split(recipe.split, recipe.base, dataset.classes)
    view = UniversalView(dataset, split, recipe.role or "source")
    if len(view) < len(dataset.samples) and recipe.role is None:
        raise UserError(f"{recipe.base.__name__} has images of unknown classes: label noise belongs on the source")
    if recipe.noise is None:
        return view
    noise = recipe.noise
    return NoisyLabels(view, noise.kind, noise.rate, noise.seed, noise.mode, dict(noise.options))


def _blank(module: str, qualname: str, *recipe: Any) -> object:
    """An instance without attributes, for pickle; a process that was not forked imports tllib here."""
    with suppress(compat.Missing):
        compat.tllib()
    base = reduce(getattr, qualname.split("."), importlib.import_module(module))
    return object.__new__(_make(Recipe(cast(type, base), *recipe)))
