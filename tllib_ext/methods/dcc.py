r"""`Domain Consensus Clustering for Universal Domain Adaptation (DCC, CVPR 2021) <https://arxiv.org/abs/2104.14340>`_.

At every round k-means divides the whole target, embedded as z, into N clusters. A source class i (its centroid is the mean of
the images with that label) and a cluster j match if each is the other's nearest; their consensus score is the mean of two
shares, of class i's images that are nearest to centre j and of cluster j's images that are nearest to centroid i. N grows until
three successive steps do not raise the mean score; then it is as it was before them. Images of matched clusters have the
class's label. With the maximum mean discrepancies :math:`M_{cc'}` of source class c and target class c', cluster centres
:math:`m_j` and the cluster j(i) of image i:

.. math::
    L = \overline{CE} + \lambda \Big[ \tfrac1n \sum_c M_{cc} - \tfrac1{n(n-1)} \sum_{c \ne c'} M_{cc'} \Big]
    + e^{-\gamma (1 - 0.6 p)}\, \overline{CE}(j(i),\ \hat z_i m / T), \qquad
    \text{unknown iff the nearest centre has no class}

p is the share of the run. A centre follows its images of a batch: :math:`m \leftarrow a m + (1 - a) b`, a their cosine.

Ours differs from the authors' code in this: all three terms are of the run's batches (the code draws a batch of ten classes with
three images each for the second, and a batch of clusters for the third), and n counts the matched classes of the batch, not all;
k-means has one start; every search begins at K (the code's later ones at ``interval``); the first round comes after a share of
the run (Office-31's setting: at once); learning rate and length are the run's. Without a matched pair the code divides by zero;
here the second term is 0, and every image unknown.
"""

import warnings
from dataclasses import dataclass
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from tllib_ext.distributed import gather_objects, gather_rows, pooled_mean
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch, Hparams, Method, Players, Prediction, hparam
from tllib_ext.methods.context import Context
from tllib_ext.modules.memory import SampleRows, gather_with_grad
from tllib_ext.split import LabelSplit

__all__ = ["Clusters", "Dcc", "DccHparams", "class_discrepancy", "find_clusters"]

ABSENT, UNMATCHED = -2, -1  # in place of a cluster's class


@dataclass
class DccHparams(Hparams):
    """The source of a default names the authors' code and the paper's text where they differ."""

    lam: float = hparam(0.1, "paper §4, code", "weight of the discrepancy of classes")
    gamma: float = hparam(3.0, "paper §4, code", "the clusters' term has the weight exp(-gamma (1 - 0.6 p))")
    temperature: float = hparam(0.1, "paper §4, code", "T of the cosines to the centres")
    rounds: int = hparam(15, "code: every 200 of 3000 steps", "how often the target is clustered")
    warmup: float = hparam(0.05, "ours; code: Office-31 0, Office-Home 400 steps", "share of the run before the first round")
    interval: int = hparam(2, "code: Office-31; Office-Home 5", "step of the search for the number of clusters")
    most: int = hparam(3, "code: Office-31; Office-Home 5", "there are at most this x K clusters")
    small_start: bool = hparam(False, "code: true", "searches after the first begin at interval, not at K")
    starts: int = hparam(1, "ours; code: 10 (scikit-learn's former default)", "starts of k-means, of which the best counts")
    least: int = hparam(3, "code: Office-31; Office-Home 6", "a matched cluster has more images than this")
    width: int = hparam(256, "code", "width of z")

    def __post_init__(self) -> None:
        if min(self.rounds, self.interval, self.most, self.starts) < 1 or not 0 <= self.warmup < 1:
            raise UserError(
                f"rounds={self.rounds}, interval={self.interval}, most={self.most}, starts={self.starts}, "
                f"warmup={self.warmup}: expected 1 or more, and a share of the run"
            )


class Clusters(NamedTuple):
    r"""Clusters of n target samples.

    Shape:
        - centres: :math:`(N, D)`, unit rows; codes: :math:`(n, )`, the cluster of each sample
        - classes: :math:`(N, )`, the class that matches the cluster, or -1
        - score: mean consensus score of the matched pairs
    """

    centres: np.ndarray
    codes: np.ndarray
    classes: np.ndarray
    score: float


def find_clusters(
    s: np.ndarray, labels: np.ndarray, centroids: np.ndarray, t: np.ndarray, counts: Sequence[int], starts: int = 1,
    init: Optional[np.ndarray] = None, seed: int = 0,
) -> Clusters:  # fmt: skip
    """Cluster the target and match the clusters to classes; the first of ``counts`` before three that do not raise the score.

    Args:
        s (numpy.ndarray), t (numpy.ndarray): unit features of source and target
        labels (numpy.ndarray): of the source
        centroids (numpy.ndarray): unit rows of the K classes, zeros for a class without images
        counts (sequence): numbers of clusters to try, in this order; the best one if none is followed by three such
        starts (int), init (numpy.ndarray, optional), seed (int): of k-means
    """
    tried: List[Clusters] = []
    for count in counts:
        start: Dict[str, object] = {"n_init": starts} if init is None else {"init": init, "n_init": 1}
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # fewer different samples than clusters
            found = KMeans(count, random_state=seed, **start).fit(t)
        tried.append(_match(s, labels, centroids, t, found.labels_, found.cluster_centers_))
        last = [clusters.score for clusters in tried[-4:]]
        if len(last) == 4 and all(after <= before for before, after in zip(last, last[1:])):
            return tried[-4]
    return max(tried, key=lambda clusters: clusters.score)


def _match(
    s: np.ndarray, labels: np.ndarray, centroids: np.ndarray, t: np.ndarray, codes: np.ndarray, means: np.ndarray
) -> Clusters:
    centres = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    similar = np.where(np.any(centroids, axis=1, keepdims=True), centroids @ centres.T, -2.0)
    nearest, classes, scores = similar.argmax(axis=0), np.full(len(centres), UNMATCHED), []
    of_source, of_target = (s @ centres.T).argmax(axis=1), (t @ centroids.T).argmax(axis=1)
    for i, j in enumerate(similar.argmax(axis=1)):
        if nearest[j] == i and (labels == i).any() and (codes == j).any():
            classes[j] = i
            scores.append(((of_source[labels == i] == j).mean() + (of_target[codes == j] == i).mean()) / 2)
    return Clusters(centres, codes, classes, float(np.mean(scores)) if scores else 0.0)


def class_discrepancy(z_s: Tensor, z_t: Tensor, in_s: Tensor, in_t: Tensor) -> Tensor:
    r"""Contrastive domain discrepancy: mean discrepancy of equal classes minus that of different ones.

    :math:`M_{cc'}` is the squared maximum mean discrepancy of the source samples of c and the target samples of c', with a sum
    of five Gaussian kernels :math:`\exp(-d^2 / (2^j \gamma_{cc'}))`, j = -2 … 2, and :math:`\gamma_{cc'}` the mean squared
    distance of these samples, without gradient. Classes that are missing on a side are left out.

    Shape:
        - z_s: :math:`(B_s, D)`, z_t: :math:`(B_t, D)`
        - in_s: :math:`(B_s, K)`, in_t: :math:`(B_t, K)`, 1 where a sample is of a class, else 0
        - Outputs: scalar; 0 without a common class

    Examples::

        >>> z, eye = torch.tensor([[0., 1.], [1., 0.]]), torch.eye(2)
        >>> class_discrepancy(z, z, eye, eye).item() < class_discrepancy(z, z, eye, eye.flip(0)).item()
        True
    """
    both = (in_s.sum(0) > 0) & (in_t.sum(0) > 0)
    in_s, in_t = in_s * both, in_t * both
    n, m = in_s.sum(0).clamp(min=1)[:, None], in_t.sum(0).clamp(min=1)[None]
    d_ss, d_tt, d_st = (torch.cdist(a, b).square() for a, b in ((z_s, z_s), (z_t, z_t), (z_s, z_t)))
    total = (in_s * (d_ss @ in_s)).sum(0)[:, None] + (in_t * (d_tt @ in_t)).sum(0)[None] + 2 * in_s.t() @ d_st @ in_t
    gamma = (total / ((n + m).square() - n - m)).detach()
    k_ss = _kernel(d_ss[..., None], (in_s @ gamma)[:, None])
    k_tt = _kernel(d_tt[..., None], (in_t @ gamma.t())[:, None])
    k_st = _kernel(d_st, in_s @ gamma @ in_t.t())
    of_source = torch.einsum("ijc,ijk->ck", in_s[:, None] * in_s[None], k_ss) / n.square()
    of_target = torch.einsum("ijk,ijc->ck", in_t[:, None] * in_t[None], k_tt) / m.square()
    discrepancy = (of_source + of_target - 2 * in_s.t() @ k_st @ in_t / (n * m)) * both * both[:, None]
    count, same = both.sum(), discrepancy.diagonal().sum()
    return same / count.clamp(min=1) - (discrepancy.sum() - same) / (count * (count - 1)).clamp(min=1)


def _kernel(distance: Tensor, gamma: Tensor) -> Tensor:
    total = torch.zeros_like(distance * gamma)
    for j in range(-2, 3):
        total = total + torch.exp(-distance / (gamma * 2.0**j).clamp(min=1e-5))
    return total


class Dcc(Method):
    """Clusters of the target that match source classes are aligned with them; the others are unknown."""

    Hparams = DccHparams
    hparams: DccHparams
    presets = {"default": {}, "code": {"warmup": 0.0, "small_start": True, "starts": 10}}
    training_only = ("codes.", "history")
    threshold = 0.0
    context: Context
    centres: Tensor
    classes: Tensor
    history: Tensor

    def __init__(self, backbone: nn.Module, split: LabelSplit, hparams: Optional[DccHparams] = None):
        super().__init__(backbone, split, hparams)
        hp, k = self.hparams, split.num_source
        self.embed = nn.Sequential(nn.Linear(self.features_dim, hp.width), nn.BatchNorm1d(hp.width))
        self.head = nn.Linear(hp.width, k)
        self.codes = SampleRows(1)  # the cluster of every target image
        self.register_buffer("centres", torch.zeros(k * hp.most, hp.width))
        self.register_buffer("classes", torch.full((k * hp.most,), ABSENT))
        self.register_buffer("history", torch.zeros(2, dtype=torch.long))  # the last two numbers of clusters
        self._first, self._rounds = 1, frozenset([0])

    def prepare(self, context: Context) -> None:
        super().prepare(context)
        context.need("source_features", "source_labels", "target_features")
        self._first = round(self.hparams.warmup * context.steps)
        self._rounds = frozenset(context.rounds(self.hparams.rounds, self._first))
        self.codes.resize(context.num_target)

    def update(self, source: Batch, target: Batch, step: int, play: Players) -> Dict[str, Tensor]:
        hp = self.hparams
        if step in self._rounds:
            self._cluster()
        z_s = self.embed(self.backbone(source.x))
        logits = self.head(z_s).float()
        ce = F.cross_entropy(logits, source.labels, reduction="none")
        self.observe(source, ce, [logits])
        terms = {"source": pooled_mean(ce)}
        if step >= self._first:
            z_t, code = self.embed(self.backbone(target.x)), self.codes.rows[target.index, 0].long()
            terms["classes"] = hp.lam * self._discrepancy(z_s, source.labels, z_t, code)
            weight = np.exp(-hp.gamma * (1 - 0.6 * step / self.steps))  # reference: 3000 steps of 5000
            terms["clusters"] = weight * self._regularise(F.normalize(z_t.to(self.centres), dim=1), code)
        play.descend(terms, "G", "C")
        return {"loss": terms["source"].detach(), **{name: value.detach() for name, value in terms.items() if name != "source"}}

    def _discrepancy(self, z_s: Tensor, labels: Tensor, z_t: Tensor, code: Tensor) -> Tensor:
        """Of the global batch."""
        every = torch.arange(self.split.num_source, device=code.device)
        matched = (self.classes[:, None] == every).any(0)
        in_s = (gather_rows(labels)[:, None] == every) & matched
        in_t = self.classes[gather_rows(code)][:, None] == every
        z_s, z_t = gather_with_grad(z_s.to(self.centres)), gather_with_grad(z_t.to(self.centres))
        return class_discrepancy(z_s, z_t, in_s.to(z_s), in_t.to(z_t))

    def _regularise(self, u: Tensor, code: Tensor) -> Tensor:
        """Move the centres, then pull every image to its own."""
        members = F.one_hot(gather_rows(code), len(self.centres)).to(u).t()
        batch = F.normalize(members @ gather_rows(u), dim=1)
        stay = (self.centres * batch).sum(1, keepdim=True)
        moved = F.normalize(stay * self.centres + (1 - stay) * batch, dim=1)
        self.centres.copy_(torch.where(members.sum(1, keepdim=True) > 0, moved, self.centres))
        logits = (u @ self.centres.t() / self.hparams.temperature).masked_fill(self.classes == ABSENT, -1e4)
        return pooled_mean(F.cross_entropy(logits, code, reduction="none"))

    @torch.no_grad()
    def _cluster(self) -> None:
        """One round, in evaluation mode and on the host."""
        hp, k, context = self.hparams, self.split.num_source, self.context
        s, t = (F.normalize(self.over_whole(domain, self.embed), dim=1).cpu().double().numpy() for domain in ("source", "target"))
        labels, weights = np.asarray(context.source_labels), context.source_weights
        members = np.eye(k)[labels] if weights is None else np.eye(k)[labels] * weights[:, None]
        means = members.T @ s
        centroids = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        before, last = (int(count) for count in self.history)
        most = min(len(self.centres), len(t))
        if before == last > 0:  # found twice in a row: no further search
            counts, init = [last], self.centres[:last].cpu().double().numpy()
        else:
            low = hp.interval if hp.small_start and last else k
            counts, init = list(range(min(low, most), most + 1, hp.interval)), None
        # One process's: the sums of k-means may differ in the last bit.
        found = gather_objects(find_clusters(s, labels, centroids, t, counts, hp.starts, init, context.seed))[0]
        count, sizes = len(found.centres), np.bincount(found.codes, minlength=len(found.centres))
        classes = np.where(sizes > hp.least, found.classes, UNMATCHED)
        self.history.copy_(torch.tensor([last, count]))
        self.codes.rows.copy_(torch.from_numpy(found.codes)[:, None])
        self.centres.zero_()[:count] = torch.from_numpy(found.centres).to(self.centres)
        self.classes.fill_(ABSENT)[:count] = torch.from_numpy(classes).to(self.classes)
        context.say(f"target: {count} clusters, {(classes >= 0).sum()} match a source class, score {found.score:.2f}")

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        z = self.embed(self.backbone(x))
        cosine = F.normalize(z.to(self.centres), dim=1) @ self.centres.t()
        known, other = (cosine.masked_fill(~mask, -1.0).max(1).values for mask in (self.classes >= 0, self.classes == UNMATCHED))
        score = other - known
        return Prediction(self.head(z).float().softmax(-1), score, score > self.threshold)
