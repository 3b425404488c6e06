"""What comes before the first step: the method's preparation and the order in which it will see the samples."""

from typing import Callable, Tuple, Union

import numpy as np

from tllib_ext.labels.treatment import treat_labels
from tllib_ext.methods.base import Method
from tllib_ext.methods.context import Context
from tllib_ext.training.domain import Domain
from tllib_ext.training.predict import features_of
from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches

__all__ = ["prepare"]


def prepare(
    method: Method,
    source: Domain,
    target: Domain,
    labels: np.ndarray,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    say: Callable[[str], None],
    labels_by: str = "given",
    unknown_share: Union[None, str, float] = None,
) -> Tuple[BalancedBatches, ShuffledBatches]:
    r"""Prepare a method for its data; returns the samplers of source and target batches.

    A checkpoint is loaded after this: a method may change the labels of its balanced batches later, but the batches
    depend on the first ones.

    Args:
        method (Method): on the device of the domains
        source (Domain), target (Domain): training data
        labels (numpy.ndarray): :math:`(N_s,)` given source labels, possibly wrong
        steps (int): iterations of the whole run
        batch (int): samples per domain and step, over all processes
        rate (float): noise rate for methods that need one
        seed (int): the run's seed
        say (callable): prints a line to the log
        labels_by (str): treatment of the given labels (:func:`~tllib_ext.labels.treatment.treat_labels`); the method sees
            its labels and its rate, the sampler draws by its weights
        unknown_share (float or str, optional): what is known of the share of unknown target samples
    """
    weights = None
    if labels_by != "given":
        inputs = source.features.cpu() if source.features is not None else features_of(method.backbone, source)
        treated = treat_labels(labels_by, inputs.numpy(), labels, method.split.num_source, rate, seed)
        say(treated.summary(labels))
        labels, weights, rate = treated
        source.use_labels(labels)
    method.context = Context(
        steps=steps,
        num_source=len(source),
        num_target=len(target),
        rate=rate,
        seed=seed,
        source_labels=labels,
        source_weights=weights,
        source_inputs=source.features,
        target_inputs=target.features,
        part_frozen=source.part_frozen,
        say=say,
        unknown_share=unknown_share,
        source_features=lambda: features_of(method.backbone, source),
        target_features=lambda: features_of(method.backbone, target),
    )
    method.prepare(method.context)
    balanced = BalancedBatches(method.balance_labels(labels), batch, seed, weights)
    return balanced, ShuffledBatches(len(target), batch, seed)
