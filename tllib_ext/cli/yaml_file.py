"""The file of ``-c``: settings in YAML, checked like flags and not trusted more than they are."""

from typing import Any, Dict, Iterable, Mapping

from tllib_ext.errors import UserError, closest
from tllib_ext.methods import METHODS
from tllib_ext.registry import Registry
from tllib_ext.training.earlier import RENAMED
from tllib_ext.training.setting import HPARAMS, Setting, read_value
from tllib_ext.typing import Record
from tllib_ext.vision.datasets import DATASETS
from tllib_ext.vision.models import BACKBONES

__all__ = ["read_yaml"]

#: a configuration file is a page of settings, not a data set: characters, and lists within lists.
YAML_LIMIT, YAML_DEPTH = 50_000, 5
#: settings that can name code to import
_CODE: Dict[str, "Registry[Any]"] = {"method": METHODS, "methods": METHODS, "arch": BACKBONES, "data": DATASETS}


def read_yaml(path: str, known: Mapping[str, Setting]) -> Record:
    """Settings from a YAML file; unknown keys, wrong values and keys that only the user may set are errors.

    Args:
        path (str): the file
        known (mapping): name -> :class:`~tllib_ext.training.setting.Setting`
    """
    settings: Record = {}
    for key, value in _mapping(path).items():
        name = str(key).replace("-", "_")
        if name in RENAMED and name != "hp":
            raise UserError(f"{path}: {key} is called {RENAMED[name]} now")
        name = RENAMED.get(name, name)
        if name not in known:
            raise UserError(f"{path}: unknown key {key!r}: {closest(name, known)}")
        if not known[name].in_files:
            raise UserError(f"{path}: {key} may not be set by a file, which could come from somebody else: give it as a flag")
        if value is None:
            continue
        registry = _CODE.get(name)
        if registry is not None and any(registry.is_import_path(word.strip()) for word in str(value).split(",")):
            raise UserError(f"{path}: {key}: a file may not choose code to import, {value!r}: give it as a flag")
        if isinstance(value, (list, dict)) and known[name].kind is not HPARAMS:
            raise UserError(f"{path}: {key}: expected one value, found a {type(value).__name__}")
        try:
            settings[name] = read_value(name, known[name], _entries(value))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    return settings


def _entries(value: object) -> object:
    """Hyper-parameters as text, as the command line gives them; a number stays one."""
    if isinstance(value, dict):
        return {str(name): str(entry) for name, entry in value.items()}
    return value if isinstance(value, (bool, list)) else str(value)


def _mapping(path: str) -> Dict[object, object]:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(YAML_LIMIT + 1)
        if len(text) > YAML_LIMIT:
            raise UserError(f"{path} is too long for a configuration: more than {YAML_LIMIT} characters")
        _check_nesting(path, yaml.parse(text, Loader=yaml.SafeLoader))
        values = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except UserError:
        raise
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected lines 'name: value', e.g. 'noise: pair', found {type(values).__name__}")
    return values


def _check_nesting(path: str, events: Iterable[Any]) -> None:
    """Refuse aliases and deep nesting while parsing: a few lines of either can stand for more than memory holds."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        depth += kind in ("MappingStartEvent", "SequenceStartEvent")
        depth -= kind in ("MappingEndEvent", "SequenceEndEvent")
        if depth > YAML_DEPTH or kind == "AliasEvent":
            what = "an alias (*)" if kind == "AliasEvent" else f"more than {YAML_DEPTH} levels"
            raise UserError(f"{path}: {what} in line {event.start_mark.line + 1}, expected plain lines 'name: value'")
