r"""What does the target hold? A posterior over the K source classes and *unknown*, without a threshold.

1. :mod:`~tllib_ext.target.embedding`: both domains centred and whitened; classes are directions.
2. :mod:`~tllib_ext.target.cosines`: the best cosine of a sample's neighbourhood belongs to one of two groups, whose null is
   measured on the cosines with all the other classes: first soft labels, "nearest prototype or unknown".
3. The target samples that are sure join the whitening and correct the centre of the target; step 2 again.
4. :mod:`~tllib_ext.target.mixture`: K tied and M free components, EM from the soft labels, averaged over M and temperature.
   The posterior of a sample is that of the mixtures: it needs no other sample, so new samples get one alike.
5. :mod:`~tllib_ext.target.groups` and :mod:`~tllib_ext.target.diagnosis`: groups of unknown samples, error, warnings.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.target.cosines import TwoGroups, soft_labels
from tllib_ext.target.diagnosis import UNCERTAIN, share_error, warnings_of
from tllib_ext.target.embedding import Embedding, project
from tllib_ext.target.groups import group_unknown
from tllib_ext.target.mixture import Mixture, fit_mixtures, number_of_groups

__all__ = ["TargetModel", "estimate_target"]

_CHUNK = 8192


@dataclass
class TargetModel:
    r"""What :func:`estimate_target` found.

    Args:
        posterior (numpy.ndarray): of the K source classes and, last, unknown, :math:`(N, K + 1)`
        share (float): share of the samples that are called unknown
        share_std (float): its error; above 0.1 the share is not known
        class_shares (numpy.ndarray): expected share of each source class in the target, :math:`(K,)`
        absent (list[int]): source classes that the target does not seem to hold
        num_groups (int): number of unknown groups
        groups (numpy.ndarray): group of every sample that is called unknown, the largest is 0; -1 for the others, :math:`(N,)`
        warnings (list[str]): what does not fit, each with a remedy
        separation (float): distance of known and unknown best cosines in standard deviations
        closeness (float): mean best cosine of the known with their source prototypes, 1 = no shift
        embedding (Embedding): from target features to the unit sphere
        mixtures (list[Mixture]): whose posteriors are averaged
        details (dict): numbers for a log
    """

    posterior: np.ndarray
    share: float
    share_std: float
    class_shares: np.ndarray
    absent: List[int]
    num_groups: int
    groups: np.ndarray
    warnings: List[str]
    separation: float
    closeness: float
    embedding: Embedding
    mixtures: List[Mixture]
    details: Dict[str, Any] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """False if there is a warning."""
        return not self.warnings

    @property
    def share_known(self) -> bool:
        """Whether the share of unknown is known to about 0.1."""
        return self.share_std <= UNCERTAIN

    @property
    def labels(self) -> np.ndarray:
        """Decision for every sample: its class, or K for unknown, :math:`(N,)`."""
        return decide(self.posterior)

    def predict(self, features: Any) -> np.ndarray:
        """Posterior :math:`(N, K + 1)` of any target features :math:`(N, D)`; every row depends on itself only."""
        x = _array("features", features)
        if x.shape[1] != len(self.embedding.centre):
            raise UserError(f"features have {x.shape[1]} columns, the target model was made of {len(self.embedding.centre)}")
        out = np.empty((len(x), self.posterior.shape[1]))
        for start in range(0, len(x), _CHUNK):
            out[start : start + _CHUNK] = _mean_posterior(self.mixtures, self.embedding(x[start : start + _CHUNK]))
        return out

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
    """Unknown (K) where its posterior is above one half, else the most probable class.

    Examples::

        >>> decide(np.array([[0.3, 0.25, 0.45], [0.1, 0.2, 0.7]])).tolist()
        [0, 2]
    """
    k = posterior.shape[1] - 1
    return np.where(posterior[:, k] > 0.5, k, posterior[:, :k].argmax(1))


def estimate_target(source_features: Any, source_posterior: Any, target_features: Any, seed: int = 0) -> TargetModel:
    r"""Estimate which target samples are of a known class, of which, and which are of none.

    Args:
        source_features (numpy.ndarray or torch.Tensor): backbone features of the source
        source_posterior (numpy.ndarray or torch.Tensor): posterior of the source labels
            (:attr:`~tllib_ext.labels.LabelModel.responsibilities`, or one-hot labels)
        target_features (numpy.ndarray or torch.Tensor): features of the target by the same backbone
        seed (int, optional): of the range finder and of k-means. Default: 0

    Shape:
        - source_features: :math:`(S, D)`, source_posterior: :math:`(S, K)`, target_features: :math:`(N, D)`

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
    source, labels, target = _checked(source_features, source_posterior, target_features)
    order = _canonical(target, seed)  # results do not depend on the order of the samples
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    first = _canonical(source, seed)
    space = project(source[first], labels[first], target[order], seed)

    fits: List[TwoGroups] = []
    embedding = space.whiten()
    start = soft_labels(embedding(target[order]), embedding.prototypes, groups=fits)
    embedding = space.whiten(start)
    z = embedding(target[order])
    soft = soft_labels(z, embedding.prototypes, groups=fits)
    mixtures = fit_mixtures(z, soft, embedding.prototypes, seed)
    members = [mixture.posterior(z) for mixture in mixtures]
    posterior = _mean_posterior(mixtures, z)

    n, k = len(target), labels.shape[1]
    decision = decide(posterior)
    share = float((decision == k).mean())
    shares = [*(float(p[:, -1].mean()) for p in members), float(start[:, -1].mean()), float(soft[:, -1].mean())]
    share_std = share_error(share, shares, soft[:, -1], n)
    counts = np.bincount(decision, minlength=k + 1)[:k]
    held = max((decision < k).sum() / max((counts > 0).sum(), 1) / 10, 1)
    expected = number_of_groups(posterior)
    number, member = group_unknown(z[decision == k], expected, seed)
    groups = np.full(n, -1, dtype=np.int64)
    groups[decision == k] = member
    # The middle settings of the second pass say how far apart the two groups are.
    separation = float(np.median([fit.separation for fit in fits[len(fits) // 2 :]]))
    closeness = float(np.median([fit.known_mean for fit in fits[len(fits) // 2 :]]))
    return TargetModel(
        posterior=posterior[back],
        share=share,
        share_std=share_std,
        class_shares=posterior[:, :k].mean(0),
        absent=[c for c in range(k) if counts[c] < held],
        num_groups=number,
        groups=groups[back],
        warnings=warnings_of(share, share_std, separation, closeness, n),
        separation=separation,
        closeness=closeness,
        embedding=embedding,
        mixtures=mixtures,
        details={"shares": shares, "expected_groups": expected, "soft": soft[back]},
    )


def _mean_posterior(mixtures: Sequence[Mixture], z: np.ndarray) -> np.ndarray:
    return np.asarray(sum(mixture.posterior(z).astype(np.float64) for mixture in mixtures) / len(mixtures))


def _canonical(features: np.ndarray, seed: int) -> np.ndarray:
    """An order of the rows that depends on their contents only."""
    probe = np.random.default_rng(seed).standard_normal(features.shape[1])
    key = np.concatenate([(features[i : i + _CHUNK].astype(np.float64) * probe).sum(1) for i in range(0, len(features), _CHUNK)])
    return np.argsort(key, kind="stable")


def _array(name: str, value: Any) -> np.ndarray:
    x = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if x.ndim != 2 or 0 in x.shape:
        raise UserError(f"{name} have shape {x.shape}: expected (N, D) with N > 0 and D > 0")
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
        raise UserError(f"{name} are {x.dtype}: expected numbers")
    bad = np.count_nonzero(~np.isfinite(x).all(1))
    if bad:
        raise UserError(f"{bad} of {len(x)} rows of {name} are not finite: expected finite numbers, check the backbone")
    return x


def _checked(source: Any, labels: Any, target: Any) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    xs, r, xt = _array("source features", source), _array("source posteriors", labels), _array("target features", target)
    if len(xs) != len(r):
        raise UserError(f"{len(xs)} source features but {len(r)} source posteriors: expected one row each")
    if xs.shape[1] != xt.shape[1]:
        raise UserError(f"source features have {xs.shape[1]} columns, target features {xt.shape[1]}: use one backbone for both")
    if r.min() < 0 or abs(r.sum(1) - 1).max() > 1e-3:
        raise UserError("source posteriors are no probabilities: expected rows that are not negative and sum to one")
    return xs, r, xt
