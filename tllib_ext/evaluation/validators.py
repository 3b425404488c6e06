r"""Validators: numbers that rank runs without target labels.

No validator is right for every data set. :func:`rank_correlation` says how well one ranked runs whose target labels are
known.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import numpy as np

__all__ = ["VALIDATORS", "Validator", "dev_risk", "mean_entropy", "rank_correlation", "ranks", "snd"]


class Validator(NamedTuple):
    """What a validator is, and whether more of it is better."""

    definition: str
    higher_is_better: bool


#: by the name of their key in ``results.jsonl``; the order of every table.
VALIDATORS: Dict[str, Validator] = {
    "val_entropy": Validator("mean entropy of the class probabilities on the target, as a share of log K", False),
    "val_snd": Validator("soft neighbourhood density of the target predictions (Saito et al. 2021)", True),
    "val_source_accuracy": Validator(
        "share of source images with their label, the corrected one where the method has a label model; training images", True
    ),
    "val_held_out_accuracy": Validator("share of the source images kept back from training with their given label", True),
    "val_dev": Validator("error on the source weighted by the density ratio of target and source (You et al. 2019)", False),
    "val_agreement": Validator("share of target images to which all heads give the same class", True),
    "val_separation": Validator("distance of known and unknown target samples in the target model, in sd", True),
}


def mean_entropy(probs: np.ndarray) -> float:
    r"""The mean of :math:`-\sum_k p_k \log p_k / \log K`.

    Examples::

        >>> mean_entropy(np.array([[0.5, 0.5], [1.0, 0.0]]))
        0.5
    """
    p = np.asarray(probs, dtype=np.float64)
    return float(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean() / np.log(p.shape[1]))


def snd(probs: np.ndarray, temperature: float = 0.05) -> float:
    r"""Soft neighbourhood density: the mean entropy of every sample's distribution over the others.

    With :math:`z_i` the probabilities scaled to unit length,
    :math:`P_{ij} \propto \exp(z_i^T z_j / \tau)` for :math:`j \ne i`, and the density is the mean of
    :math:`-\sum_j P_{ij} \log P_{ij}`. As in the published code the sample itself has the similarity -1.

    Shape:
        - probs: :math:`(N, K)`
    """
    z = np.asarray(probs, dtype=np.float64)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    similarity = z @ z.T
    np.fill_diagonal(similarity, -1.0)
    logits = similarity / temperature
    logits -= logits.max(axis=1, keepdims=True)
    weights = np.exp(logits)
    total = weights.sum(axis=1, keepdims=True)
    return float((np.log(total[:, 0]) - (weights * logits).sum(axis=1) / total[:, 0]).mean())


def dev_risk(source: np.ndarray, target: np.ndarray, error: np.ndarray) -> Optional[float]:
    r"""Deep embedded validation: the source error weighted by the density ratio, with a control variate.

    The ratio is :math:`w(x) = \frac{n_s}{n_t} \frac{P(t|x)}{P(s|x)}` of a logistic regression between the features of both
    domains; the risk is :math:`\overline{w e} + \eta \bar w - \eta` with :math:`\eta = -\mathrm{cov}(we, w)/\mathrm{var}(w)`.

    Shape:
        - source: :math:`(n_s, D)`, target: :math:`(n_t, D)`, error: :math:`(n_s, )` loss of the source samples
    """
    from sklearn.linear_model import LogisticRegression

    x = np.concatenate([source, target]).astype(np.float64)
    if not np.isfinite(x).all():
        return None
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-6) / np.sqrt(x.shape[1])
    domain = np.r_[np.zeros(len(source)), np.ones(len(target))]
    model = LogisticRegression(tol=1e-3, max_iter=200).fit(x, domain)
    there = model.predict_proba(x[: len(source)])[:, 1]
    weight = len(source) / len(target) * there / np.maximum(1 - there, 1e-12)
    weighted, variance = weight * error, weight.var(ddof=1)
    eta = -np.cov(weighted, weight)[0, 1] / variance if variance > 0 else 0.0
    return float(weighted.mean() + eta * weight.mean() - eta)


def ranks(name: str, values: Sequence[Optional[float]]) -> np.ndarray:
    """The rank of every run by one validator, 1 the best; ties share the mean rank, a run without it has NaN.

    Examples::

        >>> ranks("val_entropy", [0.5, 0.1, None, 0.5]).tolist()
        [2.5, 1.0, nan, 2.5]
    """
    from scipy.stats import rankdata

    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    found, place = ~np.isnan(numbers), np.full(len(numbers), np.nan)
    place[found] = rankdata(-numbers[found] if VALIDATORS[name].higher_is_better else numbers[found])
    return place


def rank_correlation(place: np.ndarray, metric: Sequence[Optional[float]]) -> Optional[float]:
    """Spearman's correlation of the order by a validator with the order by a metric, over runs that have both.

    1 is the same order, 0 none; None for fewer than three runs, or where all are equal.

    Examples::

        >>> rank_correlation(np.array([1.0, 2.0, 3.0]), [0.9, 0.7, 0.1])
        1.0
    """
    from scipy.stats import spearmanr

    numbers = np.array([np.nan if value is None else value for value in metric], dtype=np.float64)
    both = ~(np.isnan(numbers) | np.isnan(place))
    if both.sum() < 3 or np.ptp(numbers[both]) == 0 or np.ptp(place[both]) == 0:
        return None
    return round(float(spearmanr(-place[both], numbers[both])[0]), 12)
