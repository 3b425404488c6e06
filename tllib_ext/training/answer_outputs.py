"""What follows from the answers about a run's target: predictions, target model, metrics, and what changed."""

import hashlib
from pathlib import Path
from typing import Callable, Mapping, Optional, Tuple

import numpy as np

from tllib_ext.evaluation.answers_file import Answer, write_answers
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.evaluation.openset import OpenSetReport, evaluate
from tllib_ext.evaluation.random_sample import estimates
from tllib_ext.io import write_json
from tllib_ext.methods.base import Prediction
from tllib_ext.split import LabelSplit
from tllib_ext.target.diagnosis import group_unknown
from tllib_ext.target.model import decide
from tllib_ext.training.answer_files import AnswerFiles, read_object
from tllib_ext.training.answer_space import Answered, AnswerSpace, simulate_person, space_of_run, write_space
from tllib_ext.training.build import RunParts
from tllib_ext.typing import Record

__all__ = ["answered_metrics", "complete", "prepare_answers", "write_answered", "write_prepared"]


def prepare_answers(parts: RunParts, prediction: Prediction) -> Tuple[Optional[AnswerSpace], Optional[Answered]]:
    """What a run that ends keeps for answers, and those of a simulated person if it has one; every process takes part."""
    if parts.config.no_answers:
        return None, None
    space, number = space_of_run(parts, prediction), parts.config.answers
    return space, None if number is None else simulate_person(space, parts.target.view.targets, number, parts.config.seed)


def write_prepared(
    folder: Path, space: Optional[AnswerSpace], answered: Optional[Answered], say: Callable[[str], object]
) -> Record:
    """Write what :func:`prepare_answers` returned into the folder of a run; returns what belongs in ``results.json``."""
    if space is None:
        return {}
    say(write_space(space, folder))
    if answered is None:
        return {}
    files = AnswerFiles(folder, ended=False)
    answers = {int(row): Answer(int(label), bool(sure)) for row, label, sure in
               zip(answered.index, answered.labels, answered.confirmed)}  # fmt: skip
    write_answers(folder / "answers.csv", answers, files.split, files.paths)
    return write_answered(files, answered, answers)[1]


def write_answered(files: AnswerFiles, answered: Answered, answers: Mapping[int, Answer]) -> Tuple[Record, Record]:
    """Write ``predictions.csv``, ``target_model.json`` and, of a run that has ended, ``results.json`` as they follow from the
    answers; returns the facts and what belongs in ``results.json``."""
    split, paths, labels = files.split, files.paths, files.labels
    prediction, after, base = answered.prediction(), answered.posterior(), files.space.base
    mask = np.isin(np.arange(len(paths)), answered.index)
    facts = _facts(files, answered, answers, prediction)
    sample = files.sample
    if sample is not None:
        found = {row: answer.label for row, answer in answers.items() if answer.label is not None}
        known = {"before": decide(base), "after": decide(after)}
        facts["estimates"] = estimates(sample, found, known, split, answered.index, answered.labels)
    write_predictions(
        files.folder / "predictions.csv", prediction, np.arange(len(paths)), paths, split, 0.5, labels, mask
    )  # fmt: skip
    unknown = np.asarray(prediction.unknown)
    results: Record = {"answers": facts["number"], "predicted_unknown": float(unknown.mean())}
    if labels is not None and not mask.all():
        results.update(answered_metrics(answered, labels, split))
    if files.ended:
        write_json(files.folder / "results.json", {**read_object(files.folder / "results.json"), **results})
    model = read_object(files.folder / "target_model.json") if (files.folder / "target_model.json").is_file() else {}
    groups = np.full(len(paths), -1, dtype=np.int64)
    expected = split.num_source * unknown.mean() / max(1 - unknown.mean(), 1 / split.num_source)
    groups[unknown] = group_unknown(files.space.z[unknown].astype(np.float32), expected)[1]
    # What the model said of the share was said before the answers.
    model = {name: value for name, value in model.items() if not name.startswith("share") and name != "decides"}
    model.update(called_unknown=float(unknown.mean()), groups=groups.tolist(), answers=facts)
    doubtful = len(facts["doubtful"])
    model["warnings"] = [f"{doubtful} answers contradict their neighbourhood and do not count yet: tllib-ext ask asks them again"]
    model["warnings"] *= bool(doubtful)
    facts["digest"] = _digest(files)  # last: a command that was interrupted before is completed by the next one
    write_json(files.folder / "target_model.json", model)
    return facts, results


def _digest(files: AnswerFiles) -> str:
    return hashlib.sha256((files.folder / "answers.csv").read_bytes()).hexdigest()


def complete(files: AnswerFiles, write_report: Optional[Callable[[Path], object]] = None) -> AnswerFiles:
    """Write what follows from ``answers.csv`` if a command was interrupted after it; the files as they are then."""
    if (files.folder / "answers.csv").is_file():
        model = read_object(files.folder / "target_model.json") if (files.folder / "target_model.json").is_file() else {}
        if (model.get("answers") or {}).get("digest") != _digest(files):
            write_answered(files, files.answered(files.answers), files.answers)
            if write_report is not None and (files.folder / "report.html").is_file():
                write_report(files.folder)
            return AnswerFiles(files.folder)
    return files


def _facts(files: AnswerFiles, answered: Answered, answers: Mapping[int, Answer], prediction: Prediction) -> Record:
    """What the page shows of the answers: how many, which are doubtful, what changed by class."""
    split, paths = files.split, files.paths
    before = decide(files.space.base)
    probs, _, unknown = map(np.asarray, prediction)
    after = np.where(unknown, split.unknown, probs.argmax(1))
    classes = [{"name": split.label_names[k], "before": int((before == k).sum()), "after": int((after == k).sum()),
                "came": int(((after == k) & (before != k)).sum()), "left": int(((after != k) & (before == k)).sum())}
               for k in range(split.num_source + 1)]  # fmt: skip
    doubtful = answered.index[answered.correction.doubtful].tolist()
    return {
        "number": len(answered.index),
        "cannot_tell": sum(answer.label is None for answer in answers.values()),
        "doubtful": [{"path": paths[row], "label": split.label_names[int(answers[row].label or 0)]} for row in doubtful],
        "noise": answered.correction.noise,
        "changed": int((before != after).sum()),
        "unknown_before": float((before == split.unknown).mean()),
        "unknown_after": float(unknown.mean()),
        "classes": classes,
    }


def answered_metrics(answered: Answered, labels: np.ndarray, split: LabelSplit) -> Record:
    """Metrics of the images that were not asked about: after the answers, and ``before_os``, … before them."""
    kept = answered.others

    def report(posterior: np.ndarray) -> OpenSetReport:
        p = posterior[kept]
        return evaluate(labels[kept], decide(p), p[:, -1], split, p[:, :-1])

    before, after = report(answered.space.base), report(answered.posterior())
    names = ("os", "os_star", "unk", "h_score", "accuracy")
    return {**after.flat(), **{f"before_{name}": getattr(before, name) for name in names}}
