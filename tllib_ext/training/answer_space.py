"""What a run keeps of its target so that answers of a person can correct it: embedded samples and the posterior before."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Optional, Sequence, Tuple

import numpy as np

from tllib_ext.errors import UserError
from tllib_ext.io import atomic_path
from tllib_ext.methods.base import Method, Prediction
from tllib_ext.methods.posterior import estimated_target, with_unknown
from tllib_ext.target.answers import Correction, Neighbourhoods, choose
from tllib_ext.target.embedding import Embedding, project
from tllib_ext.training.build import RunParts
from tllib_ext.training.domain import Domain
from tllib_ext.training.outputs import label_model_of
from tllib_ext.training.predict import features_of, prediction_of_arrays

__all__ = ["FILE", "AnswerSpace", "Answered", "answer_space", "prediction_of_posterior", "simulate_person",
           "space_of_run", "write_space"]  # fmt: skip

#: in a run folder; 256 numbers of 2 bytes an image, the posterior, and the embedding of new images
FILE = "answer_space.safetensors"
#: scores closer to their threshold than this on average say nothing of the probability of unknown
_LEAST = 1e-9


@dataclass
class AnswerSpace:
    """The target of a run on the unit sphere on which its answers are spread.

    Args:
        z (numpy.ndarray): embedded target samples, float16, :math:`(N, d)`
        base (numpy.ndarray): their posterior before any answer, :math:`(N, K + 1)`
        embedding (Embedding): from features to the sphere
        on_inputs (bool): whether these are the method's inputs, else the output of its backbone
        level (tuple, optional): of :func:`~tllib_ext.methods.posterior.with_unknown`
    """

    z: np.ndarray
    base: np.ndarray
    embedding: Embedding
    on_inputs: bool
    level: Optional[Tuple[float, float]]

    @cached_property
    def _neighbourhoods(self) -> Neighbourhoods:
        return Neighbourhoods(self.z, self.base.shape[1] - 1)

    @cached_property
    def means(self) -> np.ndarray:
        """Mean direction of the neighbourhood of every target sample, :math:`(N, d)`."""
        return self._neighbourhoods(self.z)

    def choose(self, number: int, asked: Sequence[int] = (), seed: int = 0) -> np.ndarray:
        """Target samples to ask about; see :func:`~tllib_ext.target.answers.choose`."""
        return choose(self.means, number, asked, seed)

    def answered(
        self, index: np.ndarray, labels: np.ndarray, confirmed: Optional[np.ndarray] = None, trust: bool = False
    ) -> "Answered":
        """The correction by answers about target samples; see :class:`~tllib_ext.target.answers.Correction`."""
        correction = Correction(self.means[index], self.base[index], labels, confirmed, trust)
        sure = np.zeros(len(index), dtype=bool) if confirmed is None else np.asarray(confirmed, dtype=bool)
        return Answered(self, np.asarray(index), np.asarray(labels), sure, correction)

    def save(self, file: Path) -> None:
        """Write :data:`FILE`, atomically."""
        from safetensors.numpy import save

        arrays = {"z": self.z, "base": self.base, **vars(self.embedding)}
        facts = json.dumps({"on_inputs": self.on_inputs, "level": self.level})
        with atomic_path(file) as draft:
            draft.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"tllib_ext": facts}))

    @classmethod
    def load(cls, folder: Path) -> "AnswerSpace":
        """Read :data:`FILE` of a run folder."""
        from safetensors import SafetensorError, safe_open

        file = Path(folder) / FILE
        if not file.is_file():
            raise UserError(f"{folder} keeps nothing for answers: expected {file}, which a finished run writes unless it was"
                            " started with no_answers=True; train it again")  # fmt: skip
        try:
            with safe_open(file, framework="numpy") as opened:
                arrays = {name: opened.get_tensor(name) for name in opened.keys()}
                facts = json.loads(opened.metadata()["tllib_ext"])
            z, base, level = arrays.pop("z"), arrays.pop("base"), facts["level"]
            return cls(z, base, Embedding(**arrays), bool(facts["on_inputs"]), None if level is None else (level[0], level[1]))
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"cannot read {file}: {type(error).__name__} {error}") from None


@dataclass
class Answered:
    """Answers about target samples, and the posterior that they correct.

    Args:
        space (AnswerSpace): of the target
        index (numpy.ndarray): the answered samples, :math:`(A,)`
        labels (numpy.ndarray): their answers, K for unknown, :math:`(A,)`
        confirmed (numpy.ndarray): whether they were given twice, :math:`(A,)` bool
        correction (Correction): fitted to the answers
    """

    space: AnswerSpace
    index: np.ndarray
    labels: np.ndarray
    confirmed: np.ndarray
    correction: Correction

    @property
    def others(self) -> np.ndarray:
        """The samples without an answer."""
        return np.setdiff1d(np.arange(len(self.space.z)), self.index)

    def posterior(self) -> np.ndarray:
        """Of all target samples, :math:`(N, K + 1)`."""
        return self.correction(self.space.means, self.space.base)

    def prediction(self) -> Prediction:
        """Of all target samples; those that were answered, without doubt, get their answer."""
        posterior, certain = self.posterior(), ~self.correction.doubtful
        posterior[self.index[certain]] = np.eye(posterior.shape[1])[self.labels[certain]]
        return prediction_of_posterior(posterior)

    def predict(self, features: np.ndarray, prediction: Prediction) -> Prediction:
        """The corrected prediction of samples with these features; a row depends on itself and on the target of the run."""
        z = self.space.embedding(features).astype(np.float16)
        probs, score, unknown = map(np.asarray, prediction)
        base = with_unknown(probs, score, unknown, self.space.level)
        return prediction_of_posterior(self.correction(self.space._neighbourhoods(z), base))


def prediction_of_posterior(posterior: np.ndarray) -> Prediction:
    """Unknown where its part is above one half, which is also the score; arrays.

    Examples::

        >>> prediction_of_posterior(np.array([[0.2, 0.1, 0.7]]))
        Prediction(probs=array([[0.66666667, 0.33333333]]), score=array([0.7]), unknown=array([ True]))
    """
    known = posterior[:, :-1] + 1e-12  # even where the posterior of unknown is one
    unknown = posterior[:, -1]
    return prediction_of_arrays((known / known.sum(1, keepdims=True), unknown, unknown > 0.5))


def answer_space(
    method: Method, prediction: Prediction, target: np.ndarray, source: np.ndarray, labels: np.ndarray, on_inputs: bool, seed: int
) -> AnswerSpace:
    r"""The space of a trained method.

    Args:
        method (Method): after training
        prediction (Prediction): of the whole target, arrays
        target (numpy.ndarray), source (numpy.ndarray): features :math:`(N, D)`, :math:`(S, D)`; those of the source are
            used only where the method has no target model
        labels (numpy.ndarray): posterior of the source labels, :math:`(S, K)`
        on_inputs (bool): whether these are the method's inputs
        seed (int): of the range finder
    """
    probs, score, unknown = map(np.asarray, prediction)
    model, threshold = estimated_target(method), method.threshold
    level: Optional[Tuple[float, float]] = None
    if model is not None and np.array_equal(model.labels == probs.shape[1], unknown):
        level = (0.5, 0.0)
    elif threshold is not None and np.isfinite(threshold):
        distance = float(np.abs(score - threshold)[np.isfinite(score)].mean())
        level = (float(threshold), distance) if distance > _LEAST else None
    base = with_unknown(probs, score, unknown, level).astype(np.float32)
    embedding = model.predict.embedding if model is not None else project(source, labels, target, seed).whiten(base)
    return AnswerSpace(embedding(target).astype(np.float16), base, embedding, on_inputs, level)


def space_of_run(parts: RunParts, prediction: Prediction) -> AnswerSpace:
    """The space of a run, after training; every process takes part."""
    method, on_inputs = parts.method, parts.target.features is not None
    if estimated_target(method) is not None:
        target, source, labels = _features(method, parts.target), np.empty((0, 0)), np.empty((0, 0))
    else:
        target, source = _features(method, parts.target), _features(method, parts.source)
        model = label_model_of(parts)
        labels = np.eye(parts.data.split.num_source)[parts.noisy.targets] if model is None else model.responsibilities
    return answer_space(method, prediction, target, source, labels, on_inputs, parts.config.seed)


def _features(method: Method, domain: Domain) -> np.ndarray:
    values = domain.features if domain.features is not None else features_of(method.backbone, domain)
    return np.asarray(values.float().cpu().numpy())


def write_space(space: AnswerSpace, folder: Path) -> str:
    """Write :data:`FILE` in a run folder; returns a line for the log."""
    space.save(folder / FILE)
    size = (folder / FILE).stat().st_size / 1e6
    return (
        f"kept for answers: {space.z.shape[1]} numbers an image, {size:.1f} MB in all; tllib-ext ask {folder} asks (--no-answers)"
    )


def simulate_person(
    space: AnswerSpace,
    labels: np.ndarray,
    number: int,
    seed: int = 0,
    wrong: float = 0.0,
    again: bool = True,
    index: Optional[np.ndarray] = None,
) -> Answered:
    r"""Answers of a simulated person, who is asked a second time about answers that contradict their neighbourhood.

    Args:
        space (AnswerSpace): of the target
        labels (numpy.ndarray): its true labels, K for unknown, :math:`(N,)`
        number (int): of questions
        seed (int): of the choice and of the person
        wrong (float): share of answers that are drawn at random from all other labels
        again (bool): False trusts the first answers
        index (numpy.ndarray, optional): the samples to ask about, in place of those that help most
    """
    rng, count = np.random.default_rng((seed, len(labels), number)), space.base.shape[1]
    index = space.choose(number, seed=seed) if index is None else index

    def ask(samples: np.ndarray) -> np.ndarray:
        other = (labels[samples] + rng.integers(1, count, len(samples))) % count
        return np.where(rng.random(len(samples)) < wrong, other, labels[samples])

    given = ask(index)
    found = space.answered(index, given, trust=not again)
    if again and found.correction.doubtful.any():
        asked_again = found.correction.doubtful
        given[asked_again] = ask(index[asked_again])
        found = space.answered(index, given, confirmed=asked_again)
    return found
