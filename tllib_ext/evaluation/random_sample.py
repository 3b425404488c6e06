r"""Metrics of a whole target estimated from a random sample of labelled images, with intervals.

The sample is stratified by the decisions (every class, and unknown) in proportion to their sizes: a systematic sample, in
random order within a decision, of images sorted by decision, so that every image has the same inclusion probability n / N.
A share r of m drawn images, m effective images after the correction for the finite target, has the posterior
:math:`\mathrm{Beta}(m r + s q, m (1 - r) + s (1 - q))` with s = :data:`PRIOR` imaginary images; q = 1/2, and for the recall
of a class the mean recall of all classes: a class of which few images were drawn, all of them right, may still have errors.
Means over classes are means of independent draws, made :data:`WIDER`: classes of few images may be missing in the sample.
Stratification makes the estimates better than these intervals assume.
"""

import csv
from dataclasses import dataclass
from typing import Dict, List, Mapping

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.io import escape_formula, open_text, unescape_formula, write_rows
from tllib_ext.split import LabelSplit
from tllib_ext.typing import PathLike, Record

__all__ = ["METRICS", "Sample", "draw_sample", "estimates", "read_sample", "write_sample"]

METRICS = ("unknown_share", "accuracy", "os_star", "unk", "os", "h_score")
LEVEL, PRIOR = 0.95, 1.0
#: the means over classes are that much more uncertain than independent classes are: some class has no drawn image at all
WIDER = 1.5
_DRAWS = 4000
_COLUMNS = ("path", "stratum", "probability")


@dataclass(frozen=True)
class Sample:
    """A random sample: image numbers, the stratum of each, and its inclusion probability, :math:`(n,)`."""

    index: np.ndarray
    stratum: np.ndarray
    probability: np.ndarray


def draw_sample(decision: np.ndarray, number: int, taken: np.ndarray, seed: int = 0) -> Sample:
    r"""A random sample of ``number`` images, without those that are ``taken``.

    Args:
        decision (numpy.ndarray): the stratum of every image, :math:`(N,)`
        number (int): of images
        taken (numpy.ndarray): numbers of images that are not drawn
        seed (int): of the draw

    Examples::

        >>> sample = draw_sample(np.repeat([0, 1], (90, 10)), 20, np.empty(0, int))
        >>> np.bincount(sample.stratum).tolist(), float(sample.probability[0])
        ([18, 2], 0.2)
    """
    rng, free = np.random.default_rng(seed), np.setdiff1d(np.arange(len(decision)), taken)
    number = min(number, len(free))
    ordered = free[np.lexsort((rng.random(len(free)), decision[free]))]
    places = (np.arange(number) + rng.random()) * len(free) / max(number, 1)
    index = ordered[np.minimum(places.astype(np.int64), len(free) - 1)]
    return Sample(index, decision[index], np.full(number, number / max(len(free), 1)))


def estimates(
    sample: Sample,
    labels: Mapping[int, int],
    decisions: Mapping[str, np.ndarray],
    split: LabelSplit,
    answered: np.ndarray,
    answers: np.ndarray,
    seed: int = 0,
) -> Record:
    """Estimate, lower and upper end of every metric of :data:`METRICS`, for each of several ``decisions`` about the target.

    Args:
        sample (Sample): the images that were drawn
        labels (mapping): image number to true label, K for unknown; a drawn image without one is left out
        decisions (mapping): name to a decision for every image
        split (LabelSplit): the label sets
        answered (numpy.ndarray), answers (numpy.ndarray): further images whose labels are known, and these; they count in
            the share of unknown only
        seed (int): of the draws
    """
    index = np.array([i for i in sample.index.tolist() if i in labels], dtype=np.int64)
    if not len(index):
        return {}
    true, unknown = np.array([labels[i] for i in index.tolist()]), split.unknown
    fraction = float(sample.probability.mean()) * len(index) / len(sample.index)
    rest = round(len(index) / fraction)
    out: Record = {"number": len(index), "level": LEVEL}
    for name, decision in decisions.items():
        rng, right = np.random.default_rng(seed), decision[index] == true

        def share(hits: np.ndarray, expected: float = 0.5, rng: np.random.Generator = rng) -> np.ndarray:
            size, drawn = len(hits) / max(1 - fraction, 1e-6), float(hits.mean())
            draws = rng.beta(size * drawn + PRIOR * expected, size * (1 - drawn) + PRIOR * (1 - expected), _DRAWS)
            return np.r_[drawn, draws]  # first the estimate, then what the interval is made of

        values: Dict[str, np.ndarray] = {"accuracy": share(right)}
        more = len(answers), float((answers == unknown).sum())
        values["unknown_share"] = (share(true == unknown) * rest + more[1]) / (rest + more[0])
        classes = [right[true == k] for k in np.unique(true) if k < unknown]
        if classes:
            pooled = (sum(float(hits.mean()) for hits in classes) + 0.5) / (len(classes) + 1)
            star = np.mean([share(hits, pooled) for hits in classes], axis=0)
            values["os_star"] = np.clip(star[0] + WIDER * (star - star[0]), 0, 1)
        if (true == unknown).any():
            values["unk"] = share(right[true == unknown])
        known_recall, unk = values.get("os_star"), values.get("unk")
        if known_recall is not None and unk is not None:
            values["os"] = (len(classes) * known_recall + unk) / (len(classes) + 1)
            values["h_score"] = 2 * known_recall * unk / np.maximum(known_recall + unk, 1e-9)
        elif classes or unk is not None:
            values["os"] = known_recall if known_recall is not None else values["unk"]
        out[name] = {metric: _interval(values[metric]) if metric in values else None for metric in METRICS}
    return out


def _interval(values: np.ndarray) -> List[float]:
    """The estimate and both ends; where no drawn image is wrong the interval ends at 1, as that of Clopper and Pearson."""
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(values[0]), float(min(low, values[0])), float(max(high, values[0]))]


def write_sample(file: PathLike, sample: Sample, paths: List[str]) -> None:
    """Write the drawn images with their strata and inclusion probabilities."""
    columns = zip(sample.index.tolist(), sample.stratum.tolist(), sample.probability.tolist())
    write_rows(file, _COLUMNS, [(escape_formula(paths[i]), stratum, probability) for i, stratum, probability in columns])


def read_sample(file: PathLike, paths: Mapping[str, int]) -> Sample:
    """Read what :func:`write_sample` wrote."""
    with open_text(file) as stream:
        rows = list(csv.DictReader(stream))
    try:
        index = [paths[unescape_formula(row["path"])] for row in rows]
        return Sample(np.array(index, dtype=np.int64), np.array([int(row["stratum"]) for row in rows], dtype=np.int64),
                      np.array([float(row["probability"]) for row in rows]))  # fmt: skip
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{file} is not of this run, or damaged: {type(error).__name__} {error}") from None
