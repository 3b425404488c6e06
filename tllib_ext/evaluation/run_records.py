"""The JSON files of a run folder, read through one schema: types, shapes, finite numbers; an error names file and key."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from tllib_ext.errors import UserError, one_line
from tllib_ext.evaluation.further import FURTHER
from tllib_ext.evaluation.openset import DEFINITIONS
from tllib_ext.evaluation.validators import VALIDATORS
from tllib_ext.io import check_regular, read_json_lines
from tllib_ext.typing import Record

__all__ = ["CONFIG", "ENVIRONMENT", "RESULTS", "Kind", "check_record", "label_model", "matrix", "read_evaluations", "read_record",
           "target_model"]  # fmt: skip

#: the largest step of an evaluation that is believed
_STEPS = 10**12


@dataclass(frozen=True)
class Kind:
    """What a key may hold: a check of its value, and the words for it."""

    fits: Callable[[object], bool]
    expected: str

    def or_none(self) -> "Kind":
        """The same, or nothing."""
        return Kind(lambda value: value is None or self.fits(value), f"{self.expected} or null")


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of a float
        return False


def _is_list(value: object, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


NUMBER = Kind(_is_number, "a finite number")
SHARE = Kind(lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1")  # type: ignore[operator]
TEXT = Kind(lambda value: isinstance(value, str), "text")
TRUTH = Kind(lambda value: isinstance(value, bool), "true or false")
NAMES = Kind(lambda value: _is_list(value, TEXT.fits), "a list of texts")
NUMBERS = Kind(lambda value: _is_list(value, _is_number), "a list of finite numbers")
WHOLE = Kind(lambda value: _is_list(value, _is_whole), "a list of whole numbers")
RECORD = Kind(lambda value: isinstance(value, dict), "an object")


def matrix(size: int) -> Kind:
    """A list of ``size`` rows of ``size`` finite numbers."""

    def fits(value: object) -> bool:
        return _is_list(value, lambda row: _is_list(row, _is_number) and len(row) == size) and len(value) == size  # type: ignore

    return Kind(fits, f"{size} rows of {size} finite numbers")


CONFIG: Dict[str, Kind] = {
    **dict.fromkeys(("method", "source_name", "target_name", "data", "noise", "root", "log", "labels"), TEXT.or_none()),
    **dict.fromkeys(("rate", "steps", "seed"), NUMBER.or_none()),
    "command": NAMES.or_none(), "hparams": RECORD.or_none(),
}  # fmt: skip
ENVIRONMENT: Dict[str, Kind] = {"directory": TEXT.or_none(), "versions": RECORD.or_none()}
_METRICS = (*DEFINITIONS, *FURTHER, *VALIDATORS, "realised_rate", "suspects_auroc", "suspects_precision", "suggestion_accuracy",
            "oracle_os", "oracle_step", "os_low", "os_high")  # fmt: skip
RESULTS: Dict[str, Kind] = {**dict.fromkeys(_METRICS, NUMBER.or_none()), "trained": TRUTH.or_none()}


def label_model(classes: int) -> Dict[str, Kind]:
    """The schema of ``label_model.json``."""
    return {"rate": SHARE, "rate_std": NUMBER, "rate_text": TEXT.or_none(), "transition": matrix(classes)}


def target_model() -> Dict[str, Kind]:
    """The schema of ``target_model.json``."""
    more = {"share": NUMBER.or_none(), "share_interval": NUMBERS.or_none(), "groups": WHOLE.or_none()}
    return {"called_unknown": SHARE, "warnings": NAMES, "decides": TRUTH, **more}


def read_record(file: Path, schema: Mapping[str, Kind], required: Sequence[str] = ()) -> Record:
    """A JSON object whose values fit; keys that the schema does not name are left as they are."""
    check_regular(file)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {file}: {one_line(error)[:200]}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object, found {_shown(value)}")
    if lacking := [key for key in required if key not in value]:
        raise UserError(f"{file} has no {', '.join(lacking)}: it was written by another version")
    return check_record(value, schema, file)


def check_record(record: Record, schema: Mapping[str, Kind], file: Path) -> Record:
    """``record`` itself, if its values fit."""
    for key, kind in schema.items():
        if key in record and not kind.fits(record[key]):
            raise UserError(f"{file}: {key} is {_shown(record[key])}, expected {kind.expected}")
    return record


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits, too deep
        text = f"a {type(value).__name__}"
    return one_line(text if len(text) <= 60 else f"{text[:57]}…")


def read_evaluations(file: Path, names: Optional[Sequence[str]] = None) -> List[Record]:
    """The evaluations of ``results.jsonl``: every value but the scenario is a number or None.

    Args:
        file (Path): absent: no evaluation
        names (sequence of str, optional): what must be finite too
    """
    check_regular(file)
    records = read_json_lines(file)
    for record in records:
        where = f"{file}, step {_shown(record['step'])}"
        if not 0 <= record["step"] <= _STEPS:
            raise UserError(f"{where}: expected a step from 0 to {_STEPS}")
        for name, value in record.items():
            try:
                float(value or 0) if name != "scenario" else None
            except OverflowError:
                raise UserError(f"{where}: {name} is {_shown(value)}, expected a number") from None
            if name in (names or ()) and not NUMBER.or_none().fits(value):
                raise UserError(f"{where}: {name} is {_shown(value)}, expected a finite number")
    return records
