"""The contents of a run folder, for the plots and the page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional, TypeVar

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.feature_map_file import FeatureMap, read_feature_map
from tllib_ext.evaluation.files import Predictions, load_split, read_predictions
from tllib_ext.evaluation.openset import OpenSetReport
from tllib_ext.evaluation.suspects_file import Suspects, read_suspects
from tllib_ext.io import read_json_lines
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike, Record

__all__ = ["RunFiles", "read_run"]

T = TypeVar("T")


@dataclass
class RunFiles:
    """The contents of a run folder; None for a file that does not exist."""

    folder: Path
    config: Record
    env: Record
    results: Record
    records: List[Record]
    split: LabelSplit
    predictions: Predictions
    suspects: Optional[Suspects]
    feature_map: Optional[FeatureMap]
    label_model: Optional[Record]
    target_model: Optional[Record] = None

    @property
    def report(self) -> Optional[OpenSetReport]:
        """The evaluation, computed from ``predictions.csv``; None for an unlabelled target."""
        return self.predictions.evaluate(self.split) if self.predictions.labelled.all() else None

    @property
    def threshold(self) -> Optional[float]:
        """The threshold on the score; None if there is none, or not the same for every image."""
        values = np.unique(self.predictions.threshold)
        return float(values[0]) if len(values) == 1 and np.isfinite(values[0]) else None

    @property
    def true_rate(self) -> Optional[float]:
        """The share of wrong source labels where the true ones are known, else None."""
        return None if self.config.get("noise") == "none" and not self.config.get("labels") else self.results.get("realised_rate")


def read_run(folder: PathLike, results: Optional[Record] = None) -> RunFiles:
    """Read a run folder; one without a finished run is a :class:`~tllib_ext.errors.UserError`.

    ``results`` are the contents of ``results.json``, for a run that has not written it yet.
    """
    folder = Path(folder)
    if results is None and not (folder / "results.json").is_file():
        raise UserError(f"no finished run in {folder}: expected {folder / 'results.json'}, which a run writes at its end")
    split = load_split(folder / "config.json")

    def optional(name: str, read: Callable[[Path], T]) -> Optional[T]:
        return read(folder / name) if (folder / name).is_file() else None

    return RunFiles(
        folder=folder,
        config=_json(folder / "config.json"),
        env=optional("env.json", _json) or {},
        results=_json(folder / "results.json") if results is None else results,
        records=read_json_lines(folder / "results.jsonl"),
        split=split,
        predictions=read_predictions(folder / "predictions.csv", split),
        suspects=optional("suspects.csv", lambda file: read_suspects(file, split)),
        feature_map=optional("tsne.csv", read_feature_map),
        label_model=optional("label_model.json", _with_keys("rate", "rate_std", "trace", "transition")),
        target_model=optional("target_model.json", _with_keys("called_unknown", "warnings")),
    )


def _with_keys(*keys: str) -> Callable[[Path], Record]:
    def read(file: Path) -> Record:
        model = _json(file)
        lacking = [key for key in keys if key not in model]
        if lacking:
            raise UserError(f"{file} has no {', '.join(lacking)}: it was written by another version")
        return model

    return read


def _json(file: Path) -> Record:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {file}: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object")
    return value
