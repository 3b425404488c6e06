"""A dataclass of settings as a record: from and to names and values, JSON, and the words of a command line."""

from dataclasses import fields
from typing import Any, ClassVar, Dict, List, Mapping, Type, TypeVar

from tllib_ext.errors import UserError, closest
from tllib_ext.split import LabelSplit
from tllib_ext.training.earlier import RENAMED, upgrade
from tllib_ext.training.setting import settings_of
from tllib_ext.typing import Record

__all__ = ["SettingsRecord"]

S = TypeVar("S", bound="SettingsRecord")


class SettingsRecord:
    """Base class of :class:`~tllib_ext.training.config.RunConfig`: its conversions."""

    __dataclass_fields__: ClassVar[Dict[str, Any]]

    @classmethod
    def from_dict(cls: Type[S], values: Mapping[str, Any]) -> S:
        """Make a configuration from names and values; an unknown name is an error that lists the closest ones."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name in RENAMED:
                raise UserError(f"{name} is called {RENAMED[name]} now")
            if name not in known:
                raise UserError(f"unknown setting {name!r}: {closest(name, known)}")
        return cls(**values)

    @classmethod
    def from_record(cls: Type[S], record: Mapping[str, object]) -> S:
        """The configuration in ``config.json`` or ``cell.json``, also of an earlier release; other keys are left out."""
        record = upgrade(record)
        return cls(**{f.name: record[f.name] for f in fields(cls) if f.name in record})

    def to_dict(self) -> Record:
        """Every setting as a plain value, for JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    def changed(self) -> Record:
        """The settings that differ from their defaults."""
        defaults = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    @classmethod
    def essential(cls) -> List[str]:
        """Names of the settings that change what a run computes."""
        return [name for name, known in settings_of(cls).items() if known.essential]

    def words(self) -> List[str]:
        """What follows ``tllib-ext train`` to repeat this run: the settings that differ from their defaults."""
        words: List[str] = []
        for name, value in self.changed().items():
            flag = settings_of(type(self))[name].flags[0]
            if isinstance(value, Mapping) and name != "split":
                words += [flag, *(f"{key}={entry}" for key, entry in value.items())]
            elif name == "split":
                words += [flag, str(getattr(self, name))]
            else:
                words += [value] if name == "root" else [flag] if isinstance(value, bool) else [flag, str(value)]
        return words


def _plain(value: object) -> object:
    if isinstance(value, LabelSplit):
        return value.to_dict()
    return dict(value) if isinstance(value, Mapping) else value
