r"""The audit without training: which given labels look wrong, from features and labels alone, in seconds.

Two views judge the label :math:`\tilde y_i`: the posterior :math:`r_i` of the label model, which knows that one class is often
given the label of another, and the out-of-sample probabilities :math:`p_i` of the given labels, which need no model of
noise. The suspicion is :math:`1 - r_{i \tilde y_i} - p_{i \tilde y_i} \in (-1, 1)`; without evidence of noise r says nothing and
p stands in for it.

Above 20 million samples times classes there is no model of noise, only the second view, computed chunk by chunk in two
passes: memory is that of the features and of a few chunks. Labels are then ranked, and none is corrected.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple, cast

import numpy as np

from tllib_ext.columns import Columns
from tllib_ext.errors import UserError
from tllib_ext.labels.discriminative import Ridge, label_sums, tune_views
from tllib_ext.labels.duplicates import near_duplicates
from tllib_ext.labels.embedding import chunks, principal_axes
from tllib_ext.labels.encode import Labels, as_labels
from tllib_ext.labels.result import LabelModel, make_model, noise_free_responsibilities
from tllib_ext.labels.transition import FittedViews, checked, fit_labels
from tllib_ext.typing import Values

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FINE", "KINDS", "LabelIssues", "find_label_issues", "judge_labels"]

FINE = "fine"
#: the kinds of doubtful labels, in the order in which they are decided
KINDS = ("duplicate", "another class")
_DENSE = 20_000_000  # samples times classes up to which there is a label model and every posterior is kept
_TIE = 0.01  # a label that is more probable by less is not suggested: without information each sample's own class is rarer by one
_PROBE = 4000  # samples that choose temperatures and penalty above that


@dataclass(repr=False)
class LabelIssues(Columns):
    r"""The result of :func:`find_label_issues`: one row per sample, in their order.

    Args:
        suspicion (numpy.ndarray): above 0 where the label is more likely wrong than right, :math:`(N,)`
        suggested (numpy.ndarray): most probable label, :math:`(N,)`
        corrected (numpy.ndarray): the label to use: the suggested one where the evidence for noise is sufficient, else the
            given one, :math:`(N,)`
        kind (numpy.ndarray): ``fine``; ``another class``: another label is more probable;
            ``duplicate``: a near-duplicate has another label, :math:`(N,)`
        group (numpy.ndarray): number of its group of near-duplicates, -1 for none, :math:`(N,)`
        probability, p_given (numpy.ndarray): of the suggested and of the given label, :math:`(N,)`
        classes (numpy.ndarray): the labels that occur, in order
        model (LabelModel): of the samples it was fitted to; it has the rate and its interval
        pred_probs (numpy.ndarray or None): :math:`(N, K)` out-of-sample probabilities in the order of ``classes``, as
            cleanlab takes them; None above 20 million numbers
        given (numpy.ndarray): the given labels, :math:`(N,)`
    """

    suspicion: np.ndarray
    suggested: np.ndarray
    corrected: np.ndarray
    kind: np.ndarray
    group: np.ndarray
    probability: np.ndarray
    p_given: np.ndarray
    classes: np.ndarray
    model: LabelModel
    pred_probs: Optional[np.ndarray]
    given: np.ndarray

    def columns(self) -> Dict[str, np.ndarray]:
        """The arrays with one value per sample, and the number of the sample."""
        names = "given suspicion suggested corrected kind group probability p_given".split()
        return {"index": np.arange(len(self.kind)), **{name: getattr(self, name) for name in names}}

    def __repr__(self) -> str:
        counts = ", ".join(f"{np.count_nonzero(self.kind == kind)} {kind}" for kind in KINDS)
        return f"LabelIssues({len(self.kind)} labels of {len(self.classes)} classes: {counts})"

    def summary(self, names: Optional[Sequence[str]] = None) -> str:
        """A few lines for a log; classes by their ``names``, or by their labels."""
        counts = ", ".join(f"{np.count_nonzero(self.kind == kind)} {kind}" for kind in KINDS)
        changed = np.count_nonzero(self.corrected != self.suggested)
        limit = f"\nmore than {_DENSE:,} samples times classes: no model of noise, labels are ranked and none is corrected"
        return (
            f"{self.model.summary(names or [str(label) for label in self.classes.tolist()])}\n"
            f"{len(self.kind)} labels: {counts}; {self.group.max(initial=-1) + 1} groups of near-duplicates; "
            f"{changed} suggestions without sufficient evidence for a correction{limit if self.pred_probs is None else ''}"
        )


def find_label_issues(
    features: Optional[Values] = None, labels: Optional[Labels] = None, seed: int = 0, *, pred_probs: Optional[Values] = None
) -> LabelIssues:
    r"""Find labels that look wrong, in features or, as cleanlab does, in probabilities; see the head of this file.

    Args:
        features (numpy.ndarray or torch.Tensor): of a frozen backbone
        labels (array-like): given labels of any kind that can be sorted, some of them wrong
        seed (int, optional): of clusters, folds and projections. Default: 0
        pred_probs (numpy.ndarray or torch.Tensor, optional): in place of ``features``, out-of-sample probabilities of any
            classifier, columns in the order of the sorted labels. They stand alone: no model of noise, no near-duplicates,
            labels are ranked and none is corrected

    Shape:
        - features: :math:`(N, D)`, labels: :math:`(N,)`, pred_probs: :math:`(N, K)`

    Examples::

        >>> rng = np.random.default_rng(0)
        >>> true = np.repeat(["ant", "bee", "cat"], 40)
        >>> features = np.eye(3)[np.repeat([0, 1, 2], 40)] + 0.1 * rng.standard_normal((120, 3))
        >>> given = true.copy()
        >>> given[[3, 50]] = "cat"
        >>> issues = find_label_issues(features, given)
        >>> sorted(np.argsort(-issues.suspicion)[:2].tolist()), issues.suggested[[3, 50]].tolist()
        ([3, 50], ['ant', 'bee'])
        >>> find_label_issues(labels=["ant", "bee", "ant"], pred_probs=[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
        LabelIssues(3 labels of 2 classes: 0 duplicate, 1 another class)
    """
    if (features is None) == (pred_probs is None):
        raise UserError("expected labels, and either features or pred_probs")
    if labels is None:
        raise UserError("find_label_issues has no labels: expected one per row")
    if pred_probs is not None:
        return _judge_probabilities(pred_probs, labels)
    assert features is not None
    classes, y = np.unique(as_labels(labels, "labels"), return_inverse=True)
    x, y = checked(features, y.ravel(), len(classes))
    if len(classes) < 2:
        raise UserError(f"labels holds {len(classes)} class: expected at least 2 classes")
    dense = len(y) * len(classes) <= _DENSE
    model, fitted = fit_labels(x, y, len(classes), seed) if dense else _fit_views_only(x, y, len(classes), seed)
    assert fitted is not None  # two classes
    return judge_labels(x, y, classes, model, fitted, seed)


def judge_labels(
    x: np.ndarray, y: np.ndarray, classes: np.ndarray, model: LabelModel, fitted: FittedViews, seed: int = 0
) -> LabelIssues:
    """:func:`find_label_issues` of checked arrays and a model that was fitted to them; labels are positions in ``classes``."""
    n, k = len(y), len(classes)
    dense = n * k <= _DENSE
    own = np.zeros((2, n), dtype=np.float32)  # r and p of the given label
    best, top, fixed = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.int64)
    noise = fitted.step is not None
    for part in chunks(n):
        place = np.arange(len(y[part]))
        if dense:
            r, p = model.responsibilities[part], model.out_of_sample[part]
        else:
            z = fitted.axes.project(x[part])
            p = fitted.views.predict(fitted.axes.rescale(z, fitted.rank), z, y[part])
            r = np.zeros_like(p)
            r[place, y[part]] = 1
        own[:, part] = r[place, y[part]], p[place, y[part]]
        fixed[part] = np.where(own[0, part] >= r.max(1), y[part], r.argmax(1))
        both = (r + p) / 2 if noise else p
        best[part] = np.where(both[place, y[part]] >= both.max(1) - _TIE, y[part], both.argmax(1))
        top[part] = both[place, best[part]]
    group = near_duplicates(x - x.mean(0, dtype=np.float64).astype(x.dtype), seed=seed)
    doubts = _contradicted(group, y), best != y
    return LabelIssues(
        suspicion=1 - own[int(not noise)].astype(np.float64) - own[1],
        suggested=classes[best],
        corrected=classes[fixed],
        kind=np.select(doubts, KINDS, FINE),
        group=group,
        probability=top.astype(np.float64),
        p_given=own[1].astype(np.float64),
        classes=classes,
        model=model,
        pred_probs=model.out_of_sample if dense else None,
        given=classes[y],
    )


def _judge_probabilities(pred_probs: Values, labels: Labels) -> LabelIssues:
    """The second view alone: probabilities that the caller has."""
    p = np.asarray(cast("Tensor", pred_probs).detach().cpu() if hasattr(pred_probs, "detach") else pred_probs, np.float32)
    classes, y = np.unique(as_labels(labels, "labels"), return_inverse=True)
    n, k = len(y), len(classes)
    if p.ndim != 2 or len(p) != n or not n:
        raise UserError(f"pred_probs has the shape {p.shape}, labels {n} rows: expected one row of probabilities per label")
    if classes.dtype.kind in "iu" and classes[0] >= 0 and classes[-1] < p.shape[1]:  # class numbers, not all of them given
        classes, y = np.arange(p.shape[1]), classes[y]
    elif p.shape[1] != k:
        raise UserError(f"pred_probs has {p.shape[1]} columns, labels have {k} classes: expected one column per class, sorted")
    if not (np.isfinite(p).all() and p.min() >= 0 and np.allclose(p.sum(1), 1, atol=0.01)):
        raise UserError("pred_probs: expected probabilities, rows of numbers in [0, 1] whose sum is 1")
    p = p / p.sum(1, keepdims=True)
    r, interval, known = noise_free_responsibilities(p, y)
    model = make_model(r, y, np.arange(len(classes)), len(classes), None)
    model.rate_interval, model.rate_known, model.out_of_sample = interval, known, p
    own, place = p[np.arange(n), y].astype(np.float64), np.arange(n)
    best = np.where(own >= p.max(1) - _TIE, y, p.argmax(1))
    return LabelIssues(
        suspicion=1 - 2 * own, suggested=classes[best], corrected=classes[y], kind=np.where(best != y, KINDS[-1], FINE),
        group=np.full(n, -1), probability=p[place, best].astype(np.float64), p_given=own, classes=classes, model=model,
        pred_probs=p, given=classes[y],
    )  # fmt: skip


def _fit_views_only(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Tuple[LabelModel, FittedViews]:
    """Prototypes and regression of all samples; temperatures, penalty and the interval of the rate from some of them."""
    axes = principal_axes(x, classes, seed)
    rank, width = 3 * classes, len(axes.scale)
    gram, z_sums, sums = (
        np.zeros((width, width)),
        np.zeros((classes, width)),
        np.zeros((classes, min(axes.prototype_width, width))),
    )
    for part in chunks(len(x)):
        z = axes.project(x[part])
        gram += z.T @ z
        z_sums += label_sums(z, y[part], classes)
        sums += label_sums(axes.rescale(z, rank), y[part], classes)
    counts = np.bincount(y, minlength=classes)
    mean = z_sums.sum(0) / len(x)
    gram, z_sums = gram - len(x) * np.outer(mean, mean), z_sums - counts[:, None] * mean
    probe = np.random.default_rng(seed).permutation(len(x))[:_PROBE]
    z = axes.project(x[probe])
    ridge = Ridge.from_moments(mean.astype(np.float32), gram, z_sums, counts, z, y[probe])
    g = axes.rescale(z, rank)
    views = tune_views(sums, ridge, g, z, y[probe])
    p = views.predict(g, z, y[probe])
    r, interval, known = noise_free_responsibilities(p, y[probe])
    model = make_model(r, y[probe], np.arange(classes), classes, None)
    model.rate_interval, model.rate_known, model.out_of_sample = interval, known, p
    return model, FittedViews(axes, rank, views, None)


def _contradicted(group: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the label is not the only most frequent one of its group of near-duplicates."""
    found = np.zeros(len(y), dtype=bool)
    members = np.flatnonzero(group >= 0)
    if not len(members):
        return found
    pairs, place, count = np.unique(np.stack([group[members], y[members]], 1), axis=0, return_inverse=True, return_counts=True)
    most = np.zeros(group.max() + 1, dtype=np.int64)
    np.maximum.at(most, pairs[:, 0], count)
    ties = np.bincount(pairs[count == most[pairs[:, 0]], 0], minlength=len(most))
    found[members] = (count[place.ravel()] < most[group[members]]) | (ties[group[members]] > 1)
    return found
