"""Losses that are NaN or infinite: named, saved for a look, or dropped whole and counted."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from tllib_ext.errors import NonFiniteLoss
from tllib_ext.methods.base import Batch
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.training.fit import fit
from tllib_ext.training.players import SGDPlayers

FLAGS = ("-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "-b", "8",
         "--bottleneck-dim", "16", "--no-report", "--steps", "30", "--log", "run")  # fmt: skip


def test_the_term_the_step_and_the_images_are_named(run_example, feature_root, tmp_path):
    code, _, err = run_example("noisy_unida", feature_root, *FLAGS, "--lr", "1e30")
    assert code == 3 and len(err.splitlines()) == 1 and "Traceback" not in err
    assert "loss term 'source' is nan at step 1" in err and "alpha/" in err and "beta/" in err and "nonfinite.pt" in err
    state = torch.load(tmp_path / "run" / "checkpoints" / "nonfinite.pt", weights_only=True)
    assert state["term"] == "source" and state["step"] == 1
    assert len(state["source_images"]) == 8 and all(path.startswith("beta/") for path in state["target_images"])
    assert not (tmp_path / "run" / "results.json").exists()


def test_skipping_gives_up_after_a_bound(run_example, feature_root):
    words = (*FLAGS, "--lr", "1e30", "--on-nonfinite", "skip", "--eval-every", "30")
    code, out, err = run_example("noisy_unida", feature_root, *words)
    assert code == 3 and len(err.splitlines()) == 1 and "10 steps were dropped before" in err
    assert out.count("dropped: loss term") == 10


def test_a_run_that_stopped_may_go_on_by_skipping(run_example, feature_root):
    run_example("noisy_unida", feature_root, *FLAGS, "--lr", "1e30")
    code, out, err = run_example("noisy_unida", feature_root, *FLAGS, "--lr", "1e30", "--on-nonfinite", "skip")
    assert code == 3 and "dropped" in out and "another, unfinished run" not in err


def test_predictions_that_are_not_finite_are_no_result(run_example, feature_root, tmp_path):
    code, _, err = run_example("noisy_unida", feature_root, *FLAGS, "--lr", "1e38", "-m", "source_only", "--eval-every", "1")
    assert code == 3 and "is nan at step" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run" / "results.json").exists()


def test_huge_features(run_example, tmp_path):
    rng = np.random.default_rng(0)
    for scale, code, message in ((1e37, 2, "features beyond 1e18"), (1e80, 2, "NaN or infinite")):
        for name in ("alpha", "beta"):
            arrays = {"labels": np.repeat(np.arange(6), 12), "classes": np.array(list("abcdef"))}
            np.savez(tmp_path / f"{name}.npz", features=rng.normal(size=(72, 8)) * scale, **arrays)
        found, _, err = run_example("noisy_unida", tmp_path, *FLAGS)
        assert found == code and message in err and len(err.splitlines()) == 1, err


class Moody(nn.Module):
    """Counts its steps in a buffer and fails where it is told to, after everything has changed."""

    def __init__(self, bad):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))
        self.audit, self.bad = LossHistory(2, 2, torch.device("cpu")), bad

    def update(self, source, target, step, play):
        self.seen += 1
        self.audit.add(source.index, source.x, [torch.zeros(1, 2)])
        play.descend({"good": (self.weight**2).sum()}, "W")
        how = self.bad.get(step)
        factor = {None: 0.0, "loss": torch.inf, "gradient": 0.0}[how]
        extra = (self.weight - self.weight.detach()).abs().sqrt().sum() if how == "gradient" else 0.0
        play.descend({"odd": self.weight.sum() * factor + extra}, "W")
        return {"loss": self.weight.detach().sum()}


def train(bad, skip, steps=6):
    method = Moody(bad)
    play = SGDPlayers({"W": [{"params": [method.weight]}]}, lr=0.1, total_steps=steps)
    play.check_at_once, dropped = skip, []
    batches = [Batch(torch.ones(1), None, torch.tensor([0])) for _ in range(steps)]
    fit(method, play, iter(batches), iter(batches), range(steps), on_nonfinite=dropped.append if skip else None)
    return method, play, dropped


@pytest.mark.parametrize("how, term", [("loss", "odd"), ("gradient", "gradient of odd")])
def test_a_dropped_step_leaves_no_trace(how, term):
    method, play, dropped = train({2: how, 3: how}, skip=True)
    assert [(error.term, error.step) for error in dropped] == [(term, 2), (term, 3)]
    assert method.seen.item() == 4 and method.audit.visits.tolist() == [4, 0]
    assert method.weight.isfinite().all()
    whole, calm, _ = train({}, skip=True)
    assert play.optimisers["W"].state_dict()["state"].keys() == calm.optimisers["W"].state_dict()["state"].keys()


def test_dropping_nothing_changes_nothing():
    assert torch.equal(train({}, skip=True)[0].weight, train({}, skip=False)[0].weight)


def test_stop_is_the_default():
    with pytest.raises(NonFiniteLoss, match="'odd' is inf at step 2"):
        train({2: "loss"}, skip=False)


def test_skipped_steps_are_counted_in_the_results(run_example, feature_root, tmp_path, monkeypatch):
    whole, calls = SGDPlayers._check_finite, []

    def moody(self, terms):
        calls.append(self.step)
        if self.step == 4:
            raise NonFiniteLoss("source", self.step)
        whole(self, terms)

    monkeypatch.setattr(SGDPlayers, "_check_finite", moody)
    code, out, err = run_example("noisy_unida", feature_root, *FLAGS, "--on-nonfinite", "skip")
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "results.json").read_text())["skipped_steps"] == 1
    assert "step 4 dropped" in out
