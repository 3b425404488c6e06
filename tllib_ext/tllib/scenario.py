"""Label noise and universal label sets for tllib's unmodified scripts, under the names that these know.

A script of tllib builds source and target by one name; which is which follows from its arguments ``-s`` and
``-t``, or from tllib's open-set and partial factories.
"""

import argparse
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Protocol, Sequence, Tuple, Union, cast
from unittest import mock

from torch import nn

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.split import LabelSplit
from tllib_ext.tllib.factories import Noise, Relabelled, known_split, universal, with_noise
from tllib_ext.vision.datasets.builder import split_by_classes

__all__ = ["IGNORED", "Scenario", "ScriptRecord", "TllibList", "listed"]

#: a label that cross_entropy and tllib's confusion matrix leave out, and that no prediction equals
IGNORED = -100


class TllibList(Protocol):
    """A data set of a script: tllib's ``ImageList``, or a class of ours made of one."""

    samples: List[Tuple[str, int]]
    classes: List[str]
    transform: Optional[Callable[..., object]]


@dataclass
class ScriptRecord:
    """What a script of tllib used.

    Args:
        arguments (Namespace): that it parsed
        sources, targets (list): data sets, in the order in which it made them
        networks (list of torch.nn.Module): those that it evaluated, in order
        checkpoints (Path, optional): where its logger puts them
    """

    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)
    sources: List[TllibList] = field(default_factory=list)
    targets: List[TllibList] = field(default_factory=list)
    networks: List[nn.Module] = field(default_factory=list)
    checkpoints: Optional[Path] = None

    @property
    def split(self) -> LabelSplit:
        """The label sets of the data sets."""
        source, target = self.sources[0], self.targets[-1]
        split: Optional[LabelSplit] = getattr(target, "label_split", None)
        if split is not None:
            return split
        names = tuple(name for name in source.classes if name != "unknown")
        return LabelSplit(names, (), tuple(name for name in target.classes if name == "unknown"))


@dataclass(frozen=True)
class Scenario:
    """What a script runs on.

    Args:
        noise (Noise, optional): on the source; target labels stay true
        universal (bool): label sets with private classes on both sides
        split (str, optional): the label sets, e.g. ``"10/10/11"``. Default: the benchmark's
    """

    noise: Optional[Noise] = None
    universal: bool = False
    split: Optional[str] = None

    @property
    def title(self) -> str:
        """The noise, as the tables of ``compare`` call it."""
        return "clean" if self.noise is None or self.noise.kind == "none" else f"{self.noise.kind} {self.noise.rate:g}"

    @contextmanager
    def in_registries(self) -> Iterator[ScriptRecord]:
        """Within it tllib's names give this scenario's data sets, and what a script uses is recorded."""
        record = ScriptRecord()
        parse, evaluate = argparse.ArgumentParser.parse_args, nn.Module.eval
        logger = compat.tllib("utils.logger").CompleteLogger
        path_of = logger.get_checkpoint_path

        def parse_args(parser: argparse.ArgumentParser, *words: Any, **kwargs: Any) -> argparse.Namespace:
            record.arguments = cast(argparse.Namespace, parse(parser, *words, **kwargs))
            self.check(record.arguments)
            return record.arguments

        def eval_and_record(network: nn.Module) -> nn.Module:
            if all(network is not known for known in record.networks):
                record.networks.append(network)
            return evaluate(network)

        def get_checkpoint_path(log: object, name: Optional[str] = None) -> str:
            path = str(path_of(log, name))
            record.checkpoints = Path(path).parent
            return path

        with (
            mock.patch.object(argparse.ArgumentParser, "parse_args", parse_args),
            mock.patch.object(nn.Module, "eval", eval_and_record),
            mock.patch.object(logger, "get_checkpoint_path", get_checkpoint_path),
            self._replace_data_sets(record),
        ):
            yield record

    @contextmanager
    def _replace_data_sets(self, record: ScriptRecord) -> Iterator[None]:
        datasets, openset, partials = (compat.tllib(f"vision.datasets{part}") for part in ("", ".openset", ".partial"))
        with (
            mock.patch.dict(vars(datasets)),
            mock.patch.dict(vars(openset), default_open_set=partial(_open_set, openset.default_open_set)),
            mock.patch.dict(vars(partials), default_partial=partial(_partial, partials.default_partial)),
        ):
            image_list = datasets.ImageList
            for module in (datasets, openset, partials):
                for name, cls in list(vars(module).items()):
                    if isinstance(cls, type) and issubclass(cls, image_list) and cls is not image_list:
                        setattr(module, name, _DataSet(cls, self, record))
            yield

    def check(self, arguments: argparse.Namespace) -> None:
        """Refuse a script to whose arguments this scenario cannot be applied, before it reads data."""
        if not all(hasattr(arguments, name) for name in ("data", "source", "target")):
            scripts = "image_classification, openset_domain_adaptation and partial_domain_adaptation"
            raise UserError(f"noise and label sets are for tllib's scripts of {scripts}, which have -d, -s and -t")
        chosen = vars(compat.tllib("vision.datasets")).get(arguments.data)
        if not isinstance(chosen, _DataSet) or issubclass(chosen.cls, Relabelled):
            raise UserError(f"-d {arguments.data}: expected a data set of images with domains, e.g. Office31, folder or Glyphs")
        both = sorted(set(listed(arguments.source)) & set(listed(arguments.target)))
        if both:
            raise UserError(f"{', '.join(both)} is source and target: choose two domains")
        if self.universal and self.split is None and known_split(chosen.cls) is None and arguments.data != "folder":
            raise UserError(f"no label sets of {arguments.data} are known: give them, e.g. --split 10/10/11")


class _DataSet:
    """Stands for a data set class in tllib's registries; called as it is, it makes a source or a target.

    tllib's factories compare classes with those in their module and read attributes of them: it is equal to
    its class and has the attributes of that.
    """

    def __init__(self, cls: type, scenario: Scenario, record: ScriptRecord):
        self.cls, self.scenario, self.record = cls, scenario, record

    def __call__(self, root: str, task: str, role: str = "", cls: Optional[type] = None, unknown_class: bool = False,
                 **kwargs: Any) -> TllibList:  # fmt: skip
        scenario, cls, arguments = self.scenario, cls or self.cls, self.record.arguments
        role = role or ("source" if task in listed(arguments.source) else "target")
        if scenario.universal:
            cls = universal(cls, role, self._split(root), unknown_class)
        if scenario.noise is not None and role == "source":
            cls = with_noise(cls, scenario.noise)
        dataset = cls(root=root, task=task, **kwargs)
        if role == "source":
            self.record.sources.append(dataset)
        else:
            training = len(self.record.targets) < len(listed(arguments.target))  # tllib makes the training lists first
            self.record.targets.append(dataset)
            if training:  # no method sees target labels
                dataset.target_transform = _KnownOnly(0)
            elif scenario.universal and not unknown_class:  # the script's classifier has no output for unknown
                dataset.target_transform = _KnownOnly(dataset.label_split.num_source)
        if scenario.universal:  # tllib's partial scripts ask which classes the target has
            shared = dataset.label_split.shared_labels
            dataset.partial_classes, dataset.partial_classes_idx = [dataset.classes[k] for k in shared], list(shared)
        return dataset

    def __getattr__(self, name: str) -> object:
        return getattr(self.cls, name)

    def __eq__(self, other: object) -> bool:
        return self is other or self.cls is other

    def __hash__(self) -> int:
        return hash(self.cls)

    def _split(self, root: str) -> Union[None, str, LabelSplit]:
        if self.scenario.split is not None or known_split(self.cls) is not None:
            return self.scenario.split
        tasks = (listed(self.record.arguments.source)[0], listed(self.record.arguments.target)[0])
        source, target = (self.cls(root=root, task=task) for task in tasks)
        return split_by_classes(source, target)


class _KnownOnly:
    """The first labels as they are, :data:`IGNORED` for all others."""

    def __init__(self, num_known: int):
        self.num_known = num_known

    def __call__(self, label: int) -> int:
        return label if label < self.num_known else IGNORED


def _open_set(original: Callable[..., type], dataset: _DataSet, source: bool) -> Callable[..., TllibList]:
    """In place of ``default_open_set``: the universal label sets, or tllib's own with noise."""
    cls = None if dataset.scenario.universal else original(dataset.cls, source=source)
    return partial(dataset, role="source" if source else "target", cls=cls, unknown_class=True)


def _partial(original: Callable[..., type], dataset: _DataSet) -> Callable[..., TllibList]:
    """In place of ``default_partial``, likewise."""
    return partial(dataset, role="target", cls=None if dataset.scenario.universal else original(dataset.cls))


def listed(tasks: Union[None, str, Sequence[str]]) -> List[str]:
    """The domains of ``-s`` or ``-t``, of which some scripts take one and some several."""
    return [tasks] if isinstance(tasks, str) else list(tasks or [])
