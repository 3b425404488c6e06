"""What :func:`~tllib_ext.labels.transition.estimate_labels` returns, and how it is made from a posterior."""

from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from tllib_ext.labels.em import STRUCTURES, transition_from_counts
from tllib_ext.labels.model_selection import Candidate
from tllib_ext.labels.uncertainty import doubtful_labels, rate_bounds
from tllib_ext.typing import Record

__all__ = ["LabelModel", "all_classes", "noise_free_responsibilities", "make_model"]


@dataclass(repr=False)
class LabelModel:
    r"""The result of :func:`estimate_labels`.

    Args:
        transition (numpy.ndarray): :math:`Q`, row = true class, column = observed label, :math:`(K, K)`
        responsibilities (numpy.ndarray): posterior of the true class, :math:`(N, K)`
        corrected (numpy.ndarray): most probable class, the observed one if tied, :math:`(N,)`
        confidence (numpy.ndarray): its probability, :math:`(N,)`
        rate (float): expected share of wrong labels
        rate_std (float): its standard error (jackknife over label folds and posterior variance)
        rate_interval (tuple): 95 % interval of the rate; it also covers what these features cannot tell
            (:func:`~tllib_ext.labels.uncertainty.rate_bounds`)
        rate_known (bool): whether that interval is narrow enough to act on. If not and ``start`` is ``trust``, noise that
            follows the image cannot be told from classes that overlap: no label is changed, doubtful ones weigh less, and
            ``rate`` is a convention, half of the share that a classifier would contest
        unnamed (list[int]): classes whose name the labels contradict
            (:func:`~tllib_ext.labels.uncertainty.unnamed_classes`); samples of these keep their labels
        relabelled (bool): whether rate and interval are of other labels than it was fitted to (:meth:`of_labels`)
        out_of_sample (numpy.ndarray): probabilities of the given labels, predicted for each sample without it, :math:`(N, K)`
        log_likelihood (float): leave-one-out log-likelihood of the observed labels
        temperature (float): :math:`T`
        structure (str): ``shared``, ``sparse`` or ``free``
        start (str): the initialisation of the chosen model; ``trust`` if there is no evidence of noise
        trace (list[dict]): one entry per EM step of the chosen model
        candidates (list[dict]): every initialisation and structure that was compared
    """

    transition: np.ndarray
    responsibilities: np.ndarray
    corrected: np.ndarray
    confidence: np.ndarray
    rate: float
    rate_std: float
    log_likelihood: float
    temperature: float
    structure: str
    start: str
    trace: List[Dict[str, float]] = field(default_factory=list)
    candidates: List[Record] = field(default_factory=list)
    rate_interval: Tuple[float, float] = (0.0, 1.0)
    rate_known: bool = True
    unnamed: List[int] = field(default_factory=list)
    out_of_sample: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    relabelled: bool = False

    def __repr__(self) -> str:
        n, k = self.responsibilities.shape
        return f"LabelModel({n} labels of {k} classes: {self.rate_text()})"

    @property
    def judgement(self) -> np.ndarray:
        """Both views on each label, :math:`(N, K)`: the mean of the posterior and of the out-of-sample probabilities, the
        latter alone where there is no evidence of noise and the posterior is a convention."""
        if self.out_of_sample.shape != self.responsibilities.shape:  # of an earlier release
            return self.responsibilities
        return self.out_of_sample if self.start == "trust" else (self.responsibilities + self.out_of_sample) / 2

    def of_labels(self, y: np.ndarray) -> "LabelModel":
        """This model's opinion of other labels of its samples, such as its own corrections, which a new model would confirm.

        The rate is the mean posterior probability that such a label is wrong; the interval moves with it.
        """
        rate = float(1 - self.responsibilities[np.arange(len(y)), y].mean(dtype=np.float64))
        low, high = (float(np.clip(bound + rate - self.rate, 0, 1)) for bound in self.rate_interval)
        return replace(self, rate=rate, rate_interval=(low, max(high, rate)), relabelled=True)

    def of_copies(self, place: np.ndarray, y: np.ndarray) -> "LabelModel":
        """The model of samples with the labels ``y`` that are copies of the samples at ``place``."""
        r = self.responsibilities[place]
        rate = float(1 - r[np.arange(len(y)), y].mean(dtype=np.float64))
        low, high = (float(np.clip(bound + rate - self.rate, 0, 1)) for bound in self.rate_interval)
        return replace(
            self,
            responsibilities=r,
            corrected=self.corrected[place],
            confidence=self.confidence[place],
            rate=rate,
            rate_interval=self.rate_interval if self.start == "trust" else (low, high),
            out_of_sample=self.out_of_sample[place],
        )

    def rate_text(self) -> str:
        """How many labels are wrong, with the interval, or that this cannot be told."""
        low, high = self.rate_interval
        interval = f"{low:.1%} to {high:.1%}"
        if self.relabelled:
            known = "" if self.rate_known else ", not known exactly: review the changed labels"
            return (
                f"{self.rate:.1%} are estimated to be wrong after correction (95 %: {interval}; by the labels before it){known}"
            )
        if self.rate_known:
            return f"{self.rate:.1%} ± {self.rate_std:.1%} are estimated to be wrong (95 %: {interval})"
        if self.start == "trust":
            return (
                f"how many are wrong cannot be told from these features (95 %: {interval}): no label is changed, {self.rate:.1%}"
                " are assumed to be wrong, and the doubtful ones weigh less"
            )
        return f"about {self.rate:.1%} are wrong, not known exactly (95 %: {interval}): review the changed labels"

    def summary(self, names: Optional[Sequence[str]] = None) -> str:
        """A few lines for a log; classes by their ``names``, or by number."""
        n, k = self.responsibilities.shape
        names = names or [str(i) for i in range(k)]
        flips = self.transition - np.diag(np.diag(self.transition))
        a, b = np.unravel_index(flips.argmax(), flips.shape)
        head = f"label model: {n} labels of {k} classes; {self.rate_text()}"
        if self.unnamed:
            head += f"\n  {len(self.unnamed)} classes ({names[self.unnamed[0]]} first) have another label as often as their own:"
            head += " what was assigned to them keeps its labels"
        return (
            f"{head}\n"
            f"  matrix {self.structure}, start {self.start}, temperature {self.temperature:.3f}, "
            f"log-likelihood per label {self.log_likelihood / max(n, 1):.3f}\n"
            f"  mean confidence {self.confidence.mean():.3f}, most frequent flip {names[a]} -> {names[b]} ({flips[a, b]:.1%})"
        )


def all_classes(r: np.ndarray, present: np.ndarray, num_classes: int) -> np.ndarray:
    """Columns for classes without a label too."""
    full = np.zeros((len(r), num_classes), dtype=np.float32)
    full[:, present] = r
    return full


def make_model(r: np.ndarray, y: np.ndarray, present: np.ndarray, num_classes: int, winner: Optional[Candidate]) -> LabelModel:
    """The result for responsibilities (N, K') of the ``present`` classes by ``winner``, None where nothing was compared."""
    full = all_classes(r, present, num_classes)
    rows = np.arange(len(y))
    corrected = np.where(full[rows, y] >= full.max(1), y, full.argmax(1))
    counts = np.stack([np.bincount(y, full[:, k], num_classes) for k in present])[:, present]
    transition = np.eye(num_classes)  # a class without labels keeps its name
    structure = winner.structure if winner else "shared"
    if len(present) > 1:
        transition[np.ix_(present, present)] = transition_from_counts(counts, STRUCTURES[structure].discount)
    return LabelModel(
        transition=transition,
        responsibilities=full,
        corrected=corrected,
        confidence=full[rows, corrected],
        rate=float(1 - full[rows, y].mean(dtype=np.float64)),
        rate_std=winner.rate_std if winner else 0.0,
        log_likelihood=winner.best.log_likelihood if winner else 0.0,
        temperature=winner.best.temperature if winner else 0.0,
        structure=structure,
        start=winner.start if winner else "trust",
        trace=winner.trace if winner else [],
        rate_known=False,
        out_of_sample=full,
    )


def noise_free_responsibilities(p: np.ndarray, y: np.ndarray) -> Tuple[np.ndarray, Tuple[float, float], bool]:
    """Responsibilities, interval of the rate and whether it is known, where there is no evidence of noise."""
    interval, known = rate_bounds(p, np.zeros(len(y)), 0.0)
    return np.eye(p.shape[1], dtype=np.float32)[y] if known else doubtful_labels(p, y), interval, known
