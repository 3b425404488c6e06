"""Every method on the meta device: no wait for the host and no CPU tensor in a step, as a GPU needs it."""

import numpy as np
import pytest
import torch
from torch import nn

from tllib_ext.methods import METHODS
from tllib_ext.methods.context import Context
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.methods.posterior import TargetPosterior
from tllib_ext.methods.source_only import SourceOnly
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.meta import META, MetaPlayers, OnDevice, meta_batches

SPLIT = LabelSplit(["a", "b", "c"], ["p", "q"], ["u"])
N, WIDTH, STEPS = 40, 6, 1000
#: warm-up, every stage of STA, the rest; what is estimated from a whole domain (CREDO, LEAD) is so on the host at other steps.
SOME_STEPS = (0, 200, 501, 951)


def run(cls):
    """Prepare, four steps, a prediction."""
    features = torch.randn(N, 8, generator=torch.Generator().manual_seed(0))
    method = cls(FeatureBottleneck(WIDTH, 8), SPLIT, cls.Hparams()).to(META)
    method.audit = LossHistory(N, SPLIT.num_source, META)
    labels = np.arange(N) % SPLIT.num_source
    method.prepare(
        Context(STEPS, N, N, rate=0.3, source_labels=labels, source_features=features.clone, target_features=features.clone)
    )
    method.balance_labels(labels)
    source, target = meta_batches((WIDTH,), 8)
    if not method.training_free:  # such a method has no steps, and predicts on the host
        play = MetaPlayers(method.train().players(), lr=0.01, total_steps=STEPS)
        for step in SOME_STEPS:
            play.begin(step)
            with OnDevice():
                log = method.update(source, target, step, play)
            assert "loss" in log and all(value.device == META for value in log.values())
        if any(isinstance(module, TargetPosterior) and module.ready for module in method.modules()):
            return  # the target model decides, in numpy
        with OnDevice():
            assert all(value.device == META for value in method.eval().predict(target.x))


@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits_for_the_host(name):
    run(METHODS.get(name))


def item(method, loss):
    return loss * loss.mean().item()


def truth(method, loss):
    return loss if (loss > 0).all() else -loss


def to_cpu(method, loss):
    return loss * loss.detach().cpu().to(loss.device)


def mask_as_index(method, loss):
    return loss[loss > 0]


def cpu_tensor(method, loss):
    return loss @ torch.ones(len(loss), len(loss))


def cpu_index(method, loss):
    return loss[torch.arange(4)]


def in_prediction(method, loss):
    method.rule = lambda logits: (logits, logits, logits.numpy())
    return loss


@pytest.mark.parametrize("mistake", [item, truth, to_cpu, mask_as_index, cpu_tensor, cpu_index, in_prediction])
def test_a_method_that_waits_for_the_host_is_found(mistake):
    class Mutated(SourceOnly):
        def update(self, source, target, step, play):
            loss = nn.functional.cross_entropy(self.head(self.backbone(source.x)), source.labels, reduction="none")
            return {"loss": play.descend({"source": mistake(self, loss).mean()}, "G", "C")}

    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        run(Mutated)


def test_the_method_without_the_mistake_passes():
    run(type("Plain", (SourceOnly,), {}))
