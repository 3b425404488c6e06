"""tllib's registries with our names in them: data sets, noisy and universal versions of tllib's, backbones."""

import functools
from types import ModuleType
from typing import Any, Callable, Dict

from tllib_ext import compat
from tllib_ext.split import SCENARIOS, LabelSplit
from tllib_ext.tllib.datasets import dataset_class
from tllib_ext.tllib.factories import Recipe, Relabelled, noisy, resolve_split, universal, with_noise
from tllib_ext.vision.models import BACKBONES

__all__ = ["register"]

#: a function from a data set class to a data set class
Factory = Callable[..., type]


def register(noise: str = "pair", rate: float = 0.2, seed: int = 0) -> None:
    """Add our data sets and backbones to tllib's registries; a name that tllib has stays tllib's.

    With NAME one of Office31, OfficeHome, VisDA2017, DomainNet and Glyphs:

    - ``tllib.vision.datasets``: ``Glyphs``, ``folder``, ``NoisyNAME``, ``UniversalNAMESource``,
      ``UniversalNAMETarget``, ``NoisyUniversalNAMESource``
    - ``tllib.vision.datasets.openset``: ``Glyphs``, ``NoisyNAME``, ``UniversalNAME``, ``NoisyUniversalNAME``;
      tllib's ``default_open_set`` makes source and target of them
    - ``tllib.vision.datasets.partial``: ``Glyphs`` and ``NoisyNAME``; ``default_partial`` makes the target,
      whose labels are true
    - ``tllib.vision.models``: every backbone that ``tllib-ext list backbones`` names, e.g. ``small_cnn``

    Call it before a module that does ``from tllib… import default_open_set`` is imported. A second call
    replaces the noisy classes by those of its arguments, and changes nothing else.

    Args:
        noise (str, optional): kind of noise of the noisy classes. Default: "pair"
        rate (float, optional): expected share of wrong labels. Default: 0.2
        seed (int, optional): of the draw. Default: 0

    Examples::

        >>> register()  # doctest: +SKIP
        >>> import tllib.vision.datasets as datasets  # doctest: +SKIP
        >>> datasets.__dict__["NoisyUniversalOffice31Source"]("data/office31", task="A").num_classes  # doctest: +SKIP
        20
    """
    from tllib_ext.tllib.models import backbone  # torch is not imported before it is needed

    datasets, openset, partial, models = (
        compat.tllib(f"vision.{part}") for part in ("datasets", "datasets.openset", "datasets.partial", "models")
    )
    for name in ("Glyphs", "folder"):
        setattr(datasets, name, dataset_class(name))
    for name in (*SCENARIOS, "Glyphs"):
        base = getattr(datasets, name, None)
        if base is None:
            continue
        noisy_class = noisy(base, noise, rate, seed)
        source, target = universal(base, "source"), universal(base, "target")
        noisy_source = universal(noisy_class, "source")
        for made in (noisy_class, source, target, noisy_source):
            setattr(datasets, made.__name__, made)
        _add(openset, {f"Noisy{name}": noisy_class, f"Universal{name}": source, f"NoisyUniversal{name}": noisy_source})
        _add(partial, {f"Noisy{name}": noisy_class})
    for module in (openset, partial):
        _add(module, {"Glyphs": dataset_class("Glyphs")})
    _answer_for_ours(openset, "default_open_set", _open_set)
    _answer_for_ours(partial, "default_partial", _partial)
    for name in BACKBONES:
        if not hasattr(models, name):
            setattr(models, name, functools.partial(backbone, name))


def _add(module: ModuleType, classes: Dict[str, type]) -> None:
    for name, made in classes.items():
        setattr(module, name, made)


def _answer_for_ours(module: ModuleType, name: str, ours: Factory) -> None:
    """Let the function ``name`` of tllib's ``module`` answer for our classes too, which it does not know."""
    function = getattr(module, name)
    original = getattr(function, "__wrapped__", function)

    @functools.wraps(original)
    def answer(dataset_class: type, *args: Any, **kwargs: Any) -> type:
        if isinstance(dataset_class, type) and (issubclass(dataset_class, Relabelled) or hasattr(dataset_class, "SPLIT")):
            return ours(module, original, dataset_class, *args, **kwargs)
        return original(dataset_class, *args, **kwargs)

    setattr(module, name, answer)


def _open_set(openset: ModuleType, original: Factory, dataset_class: type, source: bool) -> type:
    """What ``default_open_set`` answers for a class of ours: its source or its target, both with the class "unknown"."""
    recipe = vars(dataset_class).get("recipe", Recipe(dataset_class))
    role, split = "source" if source else "target", recipe.split
    if recipe.role is None:
        try:
            made = original(recipe.base, source=source)  # tllib's label sets, where it has some
        except NotImplementedError:
            known = resolve_split(None, recipe.base, recipe.base.CLASSES)
            split = LabelSplit(known.shared, (), known.target_private)
            made = universal(recipe.base, role, split, unknown_class=True)
    else:
        made = universal(recipe.base, role, split, unknown_class=True)
    return made if recipe.noise is None or not source else with_noise(made, recipe.noise)


def _partial(partial: ModuleType, original: Factory, dataset_class: type) -> type:
    """What ``default_partial`` answers for a class of ours: the target, with its true labels."""
    recipe = vars(dataset_class).get("recipe", Recipe(dataset_class))
    try:
        return original(recipe.base)
    except NotImplementedError:
        return partial.partial(recipe.base, resolve_split(None, recipe.base, recipe.base.CLASSES).shared)
