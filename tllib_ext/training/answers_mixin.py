"""The estimator's questions and answers: which target rows to label, and the estimator corrected by their labels."""

import copy
from typing import Dict, Optional, Set, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from tllib_ext.errors import UserError
from tllib_ext.labels.encode import Labels
from tllib_ext.training.answer_space import Answered, AnswerSpace
from tllib_ext.training.arrays import check_answers

__all__ = ["AnswersMixin"]

Self = TypeVar("Self", bound="AnswersMixin")


class AnswersMixin:
    """``ask`` and ``answer`` of an estimator that has ``classes_``, ``unknown_label`` and ``seed``."""

    seed: int
    unknown_label: object
    classes_: np.ndarray
    threshold_: Optional[float]

    def _begin_answers(self) -> None:
        """No answers yet; :meth:`fit` sets the space if there is a target."""
        self.unknown_share_ = 0.0
        self.unknown_share_interval_, self.unknown_share_known_ = (0.0, 1.0), False
        self.answers_: Dict[int, object] = {}
        self.doubtful_answers_ = np.empty(0, dtype=np.int64)
        self._confirmed: Set[int] = set()
        self._space: Optional[AnswerSpace] = None
        self._answered: Optional[Answered] = None

    def ask(self, n: int = 20) -> np.ndarray:
        r"""The rows of the target (of ``Xt``, or of the target rows among ``X``) whose labels help most, :math:`(n,)`.

        Rows that were answered before are passed over, so that a second call goes on where the first ended.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise UserError(f"n={n!r}: expected a whole number, at least 1")
        return self._target_space().choose(int(n), sorted(self.answers_), self.seed)

    def answer(self: Self, index: ArrayLike, labels: Labels, trust: bool = True) -> Self:
        """The estimator corrected by the true labels of some target rows; this one stays as it is.

        Args:
            index (array-like): rows of the target, of :meth:`ask` or others
            labels (array-like): their labels: of ``classes_``, or ``unknown_label``. A row that was answered before gets the
                new label; the same label again confirms a doubtful answer
            trust (bool): also use answers that contradict their neighbourhood. False leaves them out until they are
                confirmed. Default: True

        Its :meth:`predict`, :meth:`predict_proba` and :meth:`score_samples` use the answers for every row, new ones too,
        ``threshold_`` is 0.5 and ``unknown_share_`` the share that is called unknown now; its interval stays that of the fit.
        """
        space = self._target_space()
        given = check_answers(index, labels, len(space.z), {*self.classes_.tolist(), self.unknown_label})
        corrected = copy.copy(self)
        same = {row for row in self.doubtful_answers_.tolist() if given.get(row, given) == self.answers_[row]}
        corrected._confirmed = self._confirmed - given.keys() | same
        corrected.answers_ = {**self.answers_, **given}
        number = {label: k for k, label in enumerate(self.classes_.tolist())} | {self.unknown_label: len(self.classes_)}
        rows = np.array(sorted(corrected.answers_), dtype=np.int64)
        numbers = np.array([number[corrected.answers_[row]] for row in rows.tolist()], dtype=np.int64)
        corrected._answered = space.answered(rows, numbers, np.isin(rows, list(corrected._confirmed)), trust)
        corrected.doubtful_answers_ = rows[corrected._answered.correction.doubtful]
        corrected.threshold_ = 0.5
        corrected.unknown_share_ = float((corrected._answered.posterior()[:, -1] > 0.5).mean())
        return corrected

    def _target_space(self) -> AnswerSpace:
        check_is_fitted(self)
        if self._space is None:
            raise UserError("there is no target to ask about: fit with Xt, or with target rows in sample_domain")
        return self._space
