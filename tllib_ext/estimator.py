"""Noisy universal domain adaptation on arrays, as a scikit-learn estimator: no files, no run folder."""

import threading
import warnings
from contextlib import contextmanager
from typing import Dict, Iterator, List, Mapping, Optional, Tuple, Union

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from tllib_ext.errors import UserError
from tllib_ext.labels.audit import audit_labels
from tllib_ext.labels.cached import estimate_once
from tllib_ext.labels.encode import UNKNOWN, Labels, as_labels, decode_labels, encode_labels
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Method
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.methods.posterior import estimated_target
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.target.diagnosis import MOST
from tllib_ext.training.answer_space import answer_space
from tllib_ext.training.answers_mixin import AnswersMixin
from tllib_ext.training.arrays import Rows, check_parameters, describe_scale, issue_table, split_rows
from tllib_ext.training.checkpoint import load_method
from tllib_ext.training.device import pick_device
from tllib_ext.training.domain import Domain, Steps
from tllib_ext.training.fit import fit
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.predict import predict_domain
from tllib_ext.training.prepare import prepare
from tllib_ext.training.target_output import describe_unknown
from tllib_ext.typing import Record

__all__ = ["NoisyUniDA"]

#: fits in several threads take turns: layers and dropout draw from the one generator of the process
_TURN = threading.RLock()


class NoisyUniDA(AnswersMixin, ClassifierMixin, BaseEstimator):
    r"""Learn from features with partly wrong labels, label other features, and recognise classes that have no label.

    Transductive: training sees the unlabelled target rows as well as the labelled source rows. Features are used as they
    are given; columns in different units should be standardised first, both domains by the same numbers.

    Args:
        method (str): a registered method, ``tllib:NAME`` or ``module:Class``. Default: ``"credo"``
        steps (int): training steps, not used by a method without training. Default: 1000
        seed (int): of weights, batches and dropout; equal seeds give equal results on one machine. Default: 0
        hparams (dict, optional): hyper-parameters of the method, ``{"eta": 0.1}``
        noise_rate (float, optional): share of wrong labels, for methods that need it; None takes the estimate
        batch_size (int): rows per domain and step; a smaller domain makes it smaller. Default: 36
        lr (float): learning rate of the heads, the bottleneck's is a tenth. Default: 0.01
        bottleneck_dim (int): width of the trainable layer on top of the features. Default: 512
        bottleneck_lr_mult (float): its learning rate, times ``lr``. Default: 0.1
        device (str): where to train and predict. Default: ``"cpu"``
        unknown_share (float or str, optional): what is known of the share of unknown target rows, for ``mixture`` and
            ``credo``: a number, which is then respected, or ``"few"``, ``"some"``, ``"many"``; None estimates it
        verbose (bool): print the label model and a progress bar. Default: False
        unknown_label (int, float or str): what :meth:`predict` returns for unknown. Default: -1

    Attributes:
        classes_ (numpy.ndarray): the :math:`K` labels of the source, sorted where they can be sorted
        label_issues_ (numpy.ndarray): source samples for which another class fits better than the given one, most
            suspicious first; fields ``index`` (row of ``X``), ``given``, ``suggested``, ``suspicion`` (above 0, below 1)
        noise_rate_ (float): estimated share of wrong labels
        noise_rate_std_ (float): its standard error
        noise_rate_interval_ (tuple): 95 % interval of the share
        noise_rate_known_ (bool): whether these features tell it; if not, :meth:`fit` warns
        transition_ (numpy.ndarray): estimated :math:`p(\text{given} \mid \text{true})`, row = true class, :math:`(K, K)`
        unknown_share_ (float): share of the target rows called unknown
        unknown_share_interval_ (tuple): 90 % interval of the true share; (0, 1) for a method without a target model
        unknown_share_known_ (bool): whether that interval tells it; if not, :meth:`fit` warns
        threshold_ (float or None): a sample is unknown if :meth:`score_samples` is above; None for a method without
            one number for all samples
        answers_ (dict): target row to the label that :meth:`answer` was told
        doubtful_answers_ (numpy.ndarray): rows whose answer contradicts their neighbourhood
        method_ (Method): the trained networks
        n_features_in_ (int): :math:`D`

    Examples::

        >>> rng = np.random.default_rng(0)
        >>> true, centres = np.arange(200) % 4, 4 * np.eye(5)
        >>> Xs = centres[true] + rng.normal(size=(200, 5))
        >>> ys = np.where(rng.random(200) < 0.2, (true + 1) % 4, true)  # 20 % wrong labels
        >>> Xt = centres[[0, 1, 4]] + 1.0  # shifted; the last one is of no source class
        >>> model = NoisyUniDA(steps=100).fit(Xs, ys, np.repeat(Xt, 20, 0) + rng.normal(size=(60, 5)))
        >>> model.predict(Xt)
        array([ 0,  1, -1])
    """

    #: scikit-learn's metadata routing hands ``sample_domain`` on by default, ``Xt`` where it is asked to
    __metadata_request__fit = {"sample_domain": True, "Xt": None}

    def __init__(
        self,
        method: str = "credo",
        steps: int = 1000,
        seed: int = 0,
        *,
        hparams: Optional[Mapping[str, object]] = None,
        noise_rate: Optional[float] = None,
        batch_size: int = 36,
        lr: float = 0.01,
        bottleneck_dim: int = 512,
        bottleneck_lr_mult: float = 0.1,
        device: str = "cpu",
        unknown_share: Union[None, float, str] = None,
        verbose: bool = False,
        unknown_label: Union[int, float, str] = UNKNOWN,
    ):
        self.method, self.steps, self.seed = method, steps, seed
        self.hparams, self.noise_rate = hparams, noise_rate
        self.batch_size, self.lr = batch_size, lr
        self.bottleneck_dim, self.bottleneck_lr_mult = bottleneck_dim, bottleneck_lr_mult
        self.unknown_share = unknown_share
        self.device, self.verbose, self.unknown_label = device, verbose, unknown_label

    def fit(
        self, X: ArrayLike, y: Labels, Xt: Optional[ArrayLike] = None, *, sample_domain: Optional[ArrayLike] = None
    ) -> "NoisyUniDA":
        r"""Train on labelled source rows and unlabelled target rows: ``fit(Xs, ys, Xt)`` or ``fit(X, y, sample_domain=…)``.

        The second form has the rows of both domains in ``X``, so that the steps of a pipeline transform both.

        Args:
            X (array-like): source features; with ``sample_domain`` those of the target too
            y (array-like): labels of the source rows, some of them wrong; of any hashable kind, but not ``unknown_label``.
                Those of target rows are ignored, whatever they are
            Xt (array-like, optional): target features. Without target rows the source is the target too and nothing is
                unknown
            sample_domain (array-like, optional): for each row of ``X`` a positive number for the source, a negative one for
                the target, as in skada

        Shape:
            - X: :math:`(N, D)`, y and sample_domain: :math:`(N,)`, Xt: :math:`(N_t, D)`
        """
        check_parameters(**self.get_params(deep=False))
        xs, given, xt, rows = self._domains(X, y, Xt, sample_domain)
        self.classes_, labels = encode_labels(given, len(xs), self.unknown_label)
        if xt is not None:
            self._warn(describe_scale(xs, xt))
        device = pick_device(self.device)
        source, target = Domain(Rows(xs, labels), device, show_labels=True), Domain(Rows(xs if xt is None else xt), device)
        model = estimate_once(xs, labels, len(self.classes_), self.seed)
        with _global_generator(device):
            torch.manual_seed(self.seed)
            method = self._build().to(device)
            method.audit = history = LossHistory(len(xs), len(self.classes_), device)
            self._train(method, source, target, labels, model.rate if self.noise_rate is None else self.noise_rate)
        model = getattr(method, "label_model", None) or model
        fallback = None if bool((history.visits > 0).all()) else predict_domain(method, source).probs
        self.label_issues_ = issue_table(self.classes_, labels, audit_labels(history, labels, model.judgement, fallback), rows)
        self.noise_rate_, self.noise_rate_std_ = float(model.rate), float(model.rate_std)
        self.noise_rate_interval_, self.noise_rate_known_ = model.rate_interval, bool(model.rate_known)
        doubt = f"of {len(labels)} labels {model.rate_text()}; more samples or better features may tell"
        self._warn(None if self.noise_rate_known_ else doubt)
        self.transition_, self.threshold_ = np.array(model.transition), np.inf if xt is None else method.threshold
        self._begin_answers()
        if xt is not None:
            found = predict_domain(method, target)
            self._space = answer_space(method, found, xt, xs, model.responsibilities, True, self.seed)
            self.unknown_share_ = share = float(np.mean(np.asarray(found.unknown)))
            own = estimated_target(method)
            if own is not None:
                self.unknown_share_interval_, self.unknown_share_known_ = own.share_interval, own.share_known
            if own is not None or share > MOST:
                self._warn(*describe_unknown(share, own, decides=own is not None))
        self._keep(_prediction_state(method))
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The class of each row, ``unknown_label`` for unknown.

        Labels and ``unknown_label`` of one kind, numbers or strings, give an array of that kind, else an object array:
        ``["cat", -1]``.
        """
        probs, _, unknown = self._predict(X)
        return decode_labels(probs.argmax(1), unknown & (self.threshold_ != np.inf), self.classes_, self.unknown_label)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probabilities of the source classes in the order of ``classes_``, given that the row is of one of them.

        Unknown has no column: :meth:`score_samples` is its score.

        Shape:
            - Outputs: :math:`(N, K)`, rows sum to one
        """
        return self._predict(X)[0]

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """How unknown each row looks: **high = unknown**, for every method; ``threshold_`` is the limit.

        This is the direction of every score in this package, and the opposite of scikit-learn's outlier detectors.
        """
        return self._predict(X)[1]

    def score(self, X: ArrayLike, y: Labels, sample_weight: Optional[np.ndarray] = None) -> float:
        """Accuracy with unknown as one more class: a true label not in ``classes_`` should be predicted as unknown."""
        found, known = self.predict(X).tolist(), set(self.classes_.tolist())
        true = [label if label in known else self.unknown_label for label in as_labels(y, "y").tolist()]
        if len(true) != len(found):
            raise UserError(f"X has {len(found)} rows, y has {len(true)} labels: expected one label per row")
        return float(np.average([a == b for a, b in zip(found, true)], weights=sample_weight))

    def fit_predict(
        self, X: ArrayLike, y: Labels, Xt: Optional[ArrayLike] = None, *, sample_domain: Optional[ArrayLike] = None
    ) -> np.ndarray:
        """:meth:`fit`, then :meth:`predict` of ``Xt``, or without it of ``X``."""
        return self.fit(X, y, Xt, sample_domain=sample_domain).predict(X if Xt is None else Xt)

    def _domains(
        self, X: ArrayLike, y: Labels, Xt: Optional[ArrayLike], sample_domain: Optional[ArrayLike]
    ) -> Tuple[np.ndarray, Labels, Optional[np.ndarray], np.ndarray]:
        """Source features, their labels, target features or None, and the rows of ``X`` that are the source."""
        if sample_domain is not None and Xt is not None:
            raise UserError("fit has Xt and sample_domain: expected one of them, which says where the target rows are")
        x = self._rows(X, "X", reset=True, least=2)  # batch normalisation needs two rows
        if sample_domain is None:
            return x, y, None if Xt is None else self._rows(Xt, "Xt", least=2), np.arange(len(x))
        return split_rows(x, y, sample_domain)

    def _rows(self, X: ArrayLike, name: str, reset: bool = False, least: int = 1) -> np.ndarray:
        rows = check_array(X, dtype=np.float32, order="C", ensure_min_samples=least, estimator=self, input_name=name)
        if name == "Xt" and rows.shape[1] != self.n_features_in_:
            raise UserError(
                f"Xt has {rows.shape[1]} columns, X has {self.n_features_in_}: expected the same features; a pipeline"
                " transforms X only, pass both domains in X: fit(X, y, sample_domain=...)"
            )
        validate_data(self, X, reset=reset, skip_check_array=True)  # number and names of the columns
        return rows

    @staticmethod
    def _warn(*texts: Optional[str]) -> None:
        for text in filter(None, texts):
            warnings.warn(text, stacklevel=3)

    def _build(self) -> Method:
        cls = METHODS.get(self.method)
        split = LabelSplit(tuple(f"{label} (class {k})" for k, label in enumerate(self.classes_.tolist())))
        preset = next(iter(cls.presets.values()))
        hparams = cls.Hparams.parse({**preset, **(self.hparams or {})})
        bottleneck = FeatureBottleneck(self.n_features_in_, self.bottleneck_dim, lr_mult=self.bottleneck_lr_mult)
        return cls(bottleneck, split, hparams)

    def _train(self, method: Method, source: Domain, target: Domain, labels: np.ndarray, rate: float) -> None:
        steps = 1 if method.training_free else self.steps
        balanced, shuffled = prepare(
            method, source, target, labels, steps=steps, batch=min(self.batch_size, len(source), len(target)), rate=rate,
            seed=self.seed, unknown_share=self.unknown_share, say=print if self.verbose else lambda text: None,
        )  # fmt: skip
        play = SGDPlayers(method.players(), self.lr, steps, schedule=method.lr_factor)
        batches = source.train_batches(Steps(balanced, 0, steps)), target.train_batches(Steps(shuffled, 0, steps))
        fit(method, play, batches[0], batches[1], range(steps), self.seed, progress=None if self.verbose else False)
        method.refresh()

    def _keep(self, state: Dict[str, np.ndarray]) -> None:
        """Build the networks for prediction, without the training data that the trained object refers to."""
        with _global_generator(torch.device("cpu")):
            method = self._build()
        load_method(method, {name: torch.tensor(value) for name, value in state.items()}, "the estimator")
        self.method_ = method.to(pick_device(self.device)).eval().requires_grad_(False)

    def _predict(self, X: ArrayLike) -> List[np.ndarray]:
        """Probabilities, scores and whether unknown."""
        check_is_fitted(self)
        rows = self._rows(X, "X")
        found = predict_domain(self.method_, Domain(Rows(rows), pick_device(self.device)))
        return list(map(np.asarray, found if self._answered is None else self._answered.predict(rows, found)))

    def __getstate__(self) -> Record:
        # Arrays instead of networks: tllib's methods are classes made at lookup, which pickle cannot name.
        state = dict(super().__getstate__())
        if "method_" in state:
            state["method_"] = _prediction_state(self.method_)
        return state

    def __setstate__(self, state: Record) -> None:
        super().__setstate__(state)
        if isinstance(state.get("method_"), dict):
            self._keep(state["method_"])


@contextmanager
def _global_generator(device: torch.device) -> Iterator[None]:
    """Draw from PyTorch's global generator, one thread at a time; it belongs to the caller and is left as it was."""
    with _TURN, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _prediction_state(method: Method) -> Dict[str, np.ndarray]:
    """What of a method's state prediction needs, as arrays."""
    state = method.state_dict()
    return {name: value.cpu().numpy() for name, value in state.items() if not name.startswith(method.training_only)}
