r"""What does the target hold? A posterior over the K source classes and *unknown*, without a threshold.

1. :mod:`~tllib_ext.target.embedding`: both domains centred and whitened; classes are directions.
2. :mod:`~tllib_ext.target.cosines`: soft labels, "nearest prototype or unknown", from the best cosine of a neighbourhood.
   Where the median known class has fewer than 30 samples, a neighbourhood of 15 holds samples of other classes, which makes
   a known class look unknown: there the soft labels are the mean of those by neighbourhoods of 5, 10 and 15.
3. Confident target samples take part in the whitening and correct the centre of the target; step 2 again.
4. :mod:`~tllib_ext.target.mixture`: K tied and M free components, EM from the soft labels, averaged over M and temperature.
   The posterior of a sample depends on no other sample, so new samples get one too.
   Where the neighbourhoods of step 2 fall into no two groups (a separation below 0.5), or the mixtures call more than
   95 % unknown, target samples of one class are no neighbours in these features: the nearest prototype of the sample
   itself decides, and the third with the lowest resemblance is called unknown.
5. :mod:`~tllib_ext.target.diagnosis`: groups of unknown samples, error of their share, warnings.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import ArrayLike

from tllib_ext.errors import UserError
from tllib_ext.target.cosines import TwoGroups, local_means, soft_labels
from tllib_ext.target.diagnosis import MOST, UNCERTAIN, WEAK, WEAK_SHARE, group_unknown, share_error, warnings_of
from tllib_ext.target.embedding import Embedding, project
from tllib_ext.target.mixture import Mixture, class_size, fit_mixtures, nearest_prototype, number_of_groups

__all__ = ["TargetClassifier", "TargetModel", "decide", "estimate_target"]

_CHUNK = 8192
NEIGHBOURS, SMALLER = 15, (5, 10)  # of a sample; the smaller numbers join where classes are small
SURE = 0.9  # mean confidence in the source labels below which prototypes are blurred


@dataclass
class TargetClassifier:
    """What a new sample needs: the embedding, and the mixtures whose posteriors are averaged."""

    embedding: Embedding
    mixtures: List[Mixture]

    def __call__(self, features: ArrayLike) -> np.ndarray:
        """Posterior :math:`(N, K + 1)` of target features :math:`(N, D)`; every row depends on itself only."""
        x, width = _array("features", features), len(self.embedding.centre)
        if x.shape[1] != width:
            raise UserError(f"features have {x.shape[1]} columns, the target model was made of {width}")
        parts = [self.embedding(x[i : i + _CHUNK]) for i in range(0, len(x), _CHUNK)]
        return np.concatenate([np.mean(self.members(z), axis=0) for z in parts])

    def members(self, z: np.ndarray) -> List[np.ndarray]:
        """Posterior of every mixture for embedded samples."""
        k = len(self.embedding.prototypes)
        return [mixture.posterior(z, k).astype(np.float64) for mixture in self.mixtures]


@dataclass
class TargetModel:
    """What :func:`estimate_target` found."""

    posterior: np.ndarray  # of the K source classes and, last, unknown, (N, K + 1)
    share: float  # of the samples that are called unknown
    share_std: float  # its error; above 0.1 the share is not known
    absent: List[int]  # source classes that the target does not seem to hold
    num_groups: int  # of unknown samples
    groups: np.ndarray  # group of every sample that is called unknown, the largest is 0; -1 for the others, (N,)
    warnings: List[str]  # what does not fit, each with a remedy
    separation: float  # distance of known and unknown best cosines in standard deviations
    closeness: float  # mean best cosine of the known with their source prototypes, 1 = no shift
    predict: TargetClassifier  # the posterior of new samples

    @property
    def share_known(self) -> bool:
        """Whether the share of unknown is known to about 0.1."""
        return self.share_std <= UNCERTAIN

    @property
    def labels(self) -> np.ndarray:
        """Decision for every sample: its class, or K for unknown, :math:`(N,)`."""
        return decide(self.posterior)

    def summary(self, names: Optional[Sequence[str]] = None) -> str:
        """A few lines for a log; classes by their ``names``, or by number."""
        n, width = self.posterior.shape
        name = [str(x) for x in (names if names is not None else range(width - 1))]
        absent = ", ".join(name[k] for k in self.absent) or "none"
        known = "" if self.share_known else " (not known: the error is large)"
        lines = [
            f"target model: {n} samples, {self.share:.1%} ± {self.share_std:.1%} unknown{known}, in {self.num_groups} groups",
            f"  source classes that the target does not seem to hold: {absent}",
            f"  cosine of the known with their class {self.closeness:.2f}, separation from the unknown {self.separation:.1f} sd",
        ]
        return "\n".join(lines + [f"  warning: {text}" for text in self.warnings])


def decide(posterior: np.ndarray) -> np.ndarray:
    """Unknown (K) where its posterior is above one half, else the most probable class."""
    k = posterior.shape[1] - 1
    return np.where(posterior[:, k] > 0.5, k, posterior[:, :k].argmax(1))


def estimate_target(
    source_features: ArrayLike, source_posterior: ArrayLike, target_features: ArrayLike, seed: int = 0
) -> TargetModel:
    r"""Estimate which target samples are of a known class, of which, and which are of none.

    Args:
        source_features (array): of a backbone, :math:`(S, D)`
        source_posterior (array): of the source labels (a label model's ``responsibilities``, or one-hot), :math:`(S, K)`
        target_features (array): of the same backbone, :math:`(N, D)`
        seed (int, optional): of the range finder and of k-means. Default: 0

    Examples::

        >>> rng = np.random.default_rng(0)
        >>> means = 3 * rng.standard_normal((6, 32))
        >>> ys, yt = np.repeat(np.arange(4), 50), np.repeat([0, 1, 4, 5], 50)
        >>> source = means[ys] + rng.standard_normal((200, 32))
        >>> target = means[yt] + rng.standard_normal((200, 32)) + 0.5
        >>> model = estimate_target(source, np.eye(4)[ys], target)
        >>> bool((model.labels == np.minimum(yt, 4)).all()), round(model.share, 1), model.absent, model.num_groups
        (True, 0.5, [2, 3], 2)
    """
    names = ("source features", "source posteriors", "target features")
    source, labels, target = map(_array, names, (source_features, source_posterior, target_features))
    if len(source) != len(labels):
        raise UserError(f"{len(source)} source features but {len(labels)} source posteriors: expected one row each")
    if (a := source.shape[1]) != (b := target.shape[1]):
        raise UserError(f"source features have {a} columns, target features {b}: use one backbone for both")
    if labels.min() < 0 or abs(labels.sum(1) - 1).max() > 1e-3:
        raise UserError("source posteriors are no probabilities: expected rows that are not negative and sum to one")
    # An order that depends on the rows only: results do not depend on the order of the samples.
    first, order = _canonical(source, seed), _canonical(target, seed)
    back = np.argsort(order)
    source, labels, target = source[first], labels[first], target[order]

    space = project(source, labels, target, seed)
    blurred = float(labels.max(1).mean()) < SURE
    first_embedding = space.whiten()
    first_z = first_embedding(target)
    sizes: Tuple[int, ...] = (NEIGHBOURS,)
    start, fits, _ = _neighbourhood_labels(first_z, first_embedding.prototypes, blurred, sizes)
    if class_size(start) < 2 * NEIGHBOURS:  # a neighbourhood is more than half a class: smaller ones count too
        sizes = (*SMALLER, NEIGHBOURS)
        start, fits, _ = _neighbourhood_labels(first_z, first_embedding.prototypes, blurred, sizes)
    weak = _separation(fits) < WEAK
    if not weak:
        embedding = space.whiten(start)
        z = embedding(target)
        soft, fits, cosines = _neighbourhood_labels(z, embedding.prototypes, blurred, sizes)
        classifier = TargetClassifier(embedding, fit_mixtures(z, soft, embedding.prototypes, seed))
        members = classifier.members(z)
        weak = float((decide(np.mean(members, axis=0)) == labels.shape[1]).mean()) > MOST
    if weak:
        embedding, z = first_embedding, first_z
        cosines = z @ embedding.prototypes.T
        soft, fits = soft_labels(cosines)
        classifier = TargetClassifier(embedding, [nearest_prototype(z, embedding.prototypes, WEAK_SHARE)])
        members = classifier.members(z)
    posterior = np.mean(members, axis=0)

    n, k = len(target), labels.shape[1]
    decision = decide(posterior)
    unknown = decision == k
    share = float(unknown.mean())
    counts = np.bincount(decision, minlength=k + 1)[:k]
    held = counts >= max((~unknown).sum() / max((counts > 0).sum(), 1) / 10, 1)
    shares = [float(p[:, -1].mean()) for p in (*members, start, soft)]
    nearest = np.sort(z @ embedding.prototypes.T, axis=1)[:, -2:]
    share_std = share_error(share, shares, soft, cosines, decision, held, nearest[:, -1] - nearest[:, 0])
    separation = _separation(fits)
    if weak:  # the share is a convention, not an estimate
        share_std, separation = max(share_std, WEAK_SHARE), min(separation, WEAK)
    groups = np.full(n, -1, dtype=np.int64)
    number, groups[unknown] = group_unknown(z[unknown], number_of_groups(posterior), seed)
    closeness = float(np.median([fit.known_mean for fit in fits]))
    warnings = warnings_of(share, share_std, separation, closeness, n)
    return TargetModel(posterior[back], share, share_std, np.flatnonzero(~held).tolist(), number,
                       groups[back], warnings, separation, closeness, classifier)  # fmt: skip


def _neighbourhood_labels(
    z: np.ndarray, prototypes: np.ndarray, blurred: bool, sizes: Sequence[int]
) -> Tuple[np.ndarray, List[TwoGroups], np.ndarray]:
    """Mean of the soft labels by neighbourhoods of all ``sizes``, their fits, and the cosines of the last with the prototypes."""
    cosines = [local_means(z, size) @ prototypes.T for size in sizes]
    found = [soft_labels(values, blurred) for values in cosines]
    return np.mean([soft for soft, _ in found], axis=0), [fit for _, fits in found for fit in fits], cosines[-1]


def _separation(fits: Sequence[TwoGroups]) -> float:
    return float(np.median([fit.separation for fit in fits]))


def _canonical(features: np.ndarray, seed: int) -> np.ndarray:
    probe = np.random.default_rng(seed).standard_normal(features.shape[1])
    # Row by row: a matrix product rounds differently by the position of a row.
    key = np.concatenate([(features[i : i + _CHUNK].astype(np.float64) * probe).sum(1) for i in range(0, len(features), _CHUNK)])
    return np.argsort(key, kind="stable")


def _array(name: str, value: ArrayLike) -> np.ndarray:
    x = np.asarray(value)
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{name} have shape {x.shape}: expected (N, D) with N > 0 and D > 0")
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
        raise UserError(f"{name} are {x.dtype}: expected numbers")
    bad = np.count_nonzero(~np.isfinite(x).all(1))
    if bad:
        raise UserError(f"{bad} of {len(x)} rows of {name} are not finite: expected finite numbers, check the backbone")
    return x
