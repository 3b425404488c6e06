r"""What does the target hold? A posterior over the K source classes and *unknown*, without a threshold.

1. :mod:`~tllib_ext.target.embedding`: both domains centred and whitened; classes are directions.
2. :mod:`~tllib_ext.target.graph`: nearest class and resemblance of a sample's neighbourhood; the share that resembles no class,
   under a prior. So many samples with the lowest resemblance are unknown at first.
3. The others take part in the whitening and correct the centre of the target.
4. :mod:`~tllib_ext.target.mixture`: K tied and M free components, EM from these labels. The posterior of a sample depends on
   no other sample, so new samples get one too. Where EM leaves the error of the share, or a told share, the free components
   get the weight that holds it.
5. :mod:`~tllib_ext.target.diagnosis`: groups of unknown samples, interval of their share, warnings.

The model is estimated from at most 20,000 target samples; all get a posterior.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import ArrayLike

from tllib_ext.errors import UserError
from tllib_ext.target.diagnosis import group_unknown, share_interval, warnings_of
from tllib_ext.target.embedding import Embedding, project
from tllib_ext.target.graph import prior_on_share, resemblance
from tllib_ext.target.mixture import Mixture, class_size, fit_mixture, nearest_prototype, with_share

__all__ = ["TargetClassifier", "TargetModel", "decide", "estimate_target"]

_CHUNK = 8192
_MOST = 20_000  # target samples that the model is estimated from


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
    share_interval: Tuple[float, float]  # 90 % interval of the true share
    share_known: bool  # whether it tells the share
    absent: List[int]  # source classes that the target does not seem to hold
    num_groups: int  # of unknown samples
    groups: np.ndarray  # group of every sample that is called unknown, the largest is 0; -1 for the others, (N,)
    warnings: List[str]  # what does not fit, each with a remedy
    separation: float  # distance of known and unknown best cosines in standard deviations
    closeness: float  # mean best cosine of the known with their source prototypes, 1 = no shift
    predict: TargetClassifier  # the posterior of new samples

    @property
    def labels(self) -> np.ndarray:
        """Decision for every sample: its class, or K for unknown, :math:`(N,)`."""
        return decide(self.posterior)

    def summary(self, names: Optional[Sequence[str]] = None) -> str:
        """A few lines for a log; classes by their ``names``, or by number."""
        n, width = self.posterior.shape
        name = [str(x) for x in (names if names is not None else range(width - 1))]
        absent = ", ".join(name[k] for k in self.absent) or "none"
        low, high = self.share_interval
        lines = [
            f"target model: {n} samples, {self.share:.1%} unknown (90 % interval {low:.0%} to {high:.0%}), in {self.num_groups}"
            " groups",
            f"  source classes that the target does not seem to hold: {absent}",
            f"  cosine of the known with their class {self.closeness:.2f}, separation from the unknown {self.separation:.1f} sd",
        ]
        texts = [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines + texts if self.share_known else texts + lines)


def decide(posterior: np.ndarray) -> np.ndarray:
    """Unknown (K) where its posterior is above one half, else the most probable class."""
    k = posterior.shape[1] - 1
    return np.where(posterior[:, k] > 0.5, k, posterior[:, :k].argmax(1))


def estimate_target(
    source_features: ArrayLike,
    source_posterior: ArrayLike,
    target_features: ArrayLike,
    seed: int = 0,
    unknown_share: Union[None, str, float] = None,
) -> TargetModel:
    r"""Estimate which target samples are of a known class, of which, and which are of none.

    Args:
        source_features (array): of a backbone, :math:`(S, D)`
        source_posterior (array): of the source labels (a label model's ``responsibilities``, or one-hot), :math:`(S, K)`
        target_features (array): of the same backbone, :math:`(N, D)`
        seed (int, optional): of the range finder and of k-means. Default: 0
        unknown_share (float or str, optional): what is known of the share of unknown: the share itself, which is then
            respected, or ``few``, ``some``, ``many``. Default: a weak prior, 1/3 ± 1/4

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
    prior = prior_on_share(unknown_share)
    # An order that depends on the rows only: results do not depend on the order of the samples.
    first, order = _canonical(source, seed), _canonical(target, seed)
    step = max(len(target) / _MOST, 1.0)
    sample = target[order[((np.arange(int(len(target) / step)) + 0.5) * step).astype(np.int64)]]

    k = labels.shape[1]
    space = project(source[first], labels[first], sample, seed)
    embedding = space.whiten()
    near = resemblance(embedding(sample), embedding.prototypes, prior)
    start = near.labels(k)
    if near.weak:
        mixture = nearest_prototype(embedding.prototypes)
    else:
        embedding = space.whiten(np.eye(k + 1)[start])
        mixture = fit_mixture(embedding(sample), start, embedding.prototypes, seed)

    z = np.concatenate([embedding(target[order[i : i + _CHUNK]]) for i in range(0, len(order), _CHUNK)])
    mixture = with_share(mixture, z, k, near.share - near.error, near.share + near.error)
    classifier = TargetClassifier(embedding, [mixture])
    posterior = np.concatenate([np.mean(classifier.members(z[i : i + _CHUNK]), axis=0) for i in range(0, len(z), _CHUNK)])
    decision = decide(posterior)
    unknown = decision == k
    share, counts = float(unknown.mean()), np.bincount(decision, minlength=k + 1)[:k]
    held = counts >= max((~unknown).sum() / max((counts > 0).sum(), 1) / 10, 1)
    best = (z @ embedding.prototypes.T).max(1)
    known_mean = float(best[~unknown].mean()) if not unknown.all() else 0.0
    unknown_mean = float(best[unknown].mean()) if unknown.any() else near.null
    groups = np.full(len(z), -1, dtype=np.int64)
    number, groups[unknown] = group_unknown(z[unknown], unknown.sum() / class_size(decision, k), seed)
    interval, known = share_interval(share, near)
    warnings = warnings_of(share, interval, known, known_mean, len(z))
    back = np.argsort(order)
    return TargetModel(posterior[back], share, interval, known, np.flatnonzero(~held).tolist(), number, groups[back], warnings,
                       (known_mean - unknown_mean) / max(float(best.std()), 1e-9), known_mean, classifier)  # fmt: skip


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
    bad = sum(np.count_nonzero(~np.isfinite(x[i : i + _CHUNK]).all(1)) for i in range(0, len(x), _CHUNK))
    if bad:
        raise UserError(f"{bad} of {len(x)} rows of {name} are not finite: expected finite numbers, check the backbone")
    return x
