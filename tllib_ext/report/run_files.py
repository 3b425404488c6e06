"""The contents of a run folder, for the plots and the page."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional, TypeVar

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.evaluation.feature_map_file import FeatureMap, read_feature_map
from tllib_ext.evaluation.files import Predictions, load_split, read_predictions
from tllib_ext.evaluation.openset import OpenSetReport
from tllib_ext.evaluation.run_records import (
    CONFIG,
    ENVIRONMENT,
    RESULTS,
    check_record,
    label_model,
    matrix,
    read_evaluations,
    read_record,
    target_model,
)
from tllib_ext.evaluation.suspects_file import Suspects, read_suspects
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
        return self.predictions.evaluate(self.split) if self.predictions.labelled.any() else None

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
        return read(folder / name) if os.path.lexists(folder / name) else None

    def estimate(file: Path) -> Record:
        return read_record(file, label_model(split.num_source), ("rate", "rate_std", "trace", "transition"))

    def diagnosis(file: Path) -> Record:
        found = read_record(file, target_model(), ("called_unknown", "warnings"))
        lacking = {"share": ("decides", "share_interval"), "decides": ("share", "share_interval")}
        if absent := [name for key, names in lacking.items() for name in names if key in found and found.get(name) is None]:
            raise UserError(f"{file} has no {absent[0]}: it was written by another version")
        return found

    record = read_record(folder / "results.json", {}) if results is None else results
    check_record(record, {**RESULTS, "realised_transition": matrix(split.num_source).or_none()}, folder / "results.json")
    return RunFiles(
        folder=folder,
        config=read_record(folder / "config.json", CONFIG),
        env=optional("env.json", lambda file: read_record(file, ENVIRONMENT)) or {},
        results=record,
        records=read_evaluations(folder / "results.jsonl"),
        split=split,
        predictions=read_predictions(folder / "predictions.csv", split),
        suspects=optional("suspects.csv", lambda file: read_suspects(file, split)),
        feature_map=optional("tsne.csv", read_feature_map),
        label_model=optional("label_model.json", estimate),
        target_model=optional("target_model.json", diagnosis),
    )
