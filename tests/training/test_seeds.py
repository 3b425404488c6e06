"""Chance is a function of seed and step, caches one of their content: what a run draws does not depend on what ran before."""

import numpy as np
import pytest
import torch
from forked_runs import images_flags, write_images
from torch import nn

from tllib_ext.cli import train
from tllib_ext.labels.audit import audit_labels
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.fit import fit
from tllib_ext.training.recorder import Recorder
from tllib_ext.vision.datasets.sampling import ShuffledBatches
from tllib_ext.vision.models.small_cnn import SmallCNN


class Drawing(nn.Module):
    """A method that records one random number per step."""

    audit = None

    def __init__(self):
        super().__init__()
        self.drawn, self.check_at_once = [], False
        self.weight = nn.Parameter(torch.zeros(1))

    def update(self, source, target, step, play):
        self.drawn.append(torch.rand(()).item())
        return {}

    def begin(self, step):
        pass

    def check_pending(self):
        pass


def drawn(steps, seed):
    method = Drawing()
    fit(method, method, iter([None] * 9), iter([None] * 9), steps, seed, progress=False)
    return method.drawn


def test_chance_inside_a_step_follows_from_seed_and_step():
    torch.manual_seed(1)
    first = drawn(range(6), 0)
    torch.manual_seed(2)
    assert drawn(range(6), 0) == first and drawn(range(3, 6), 0) == first[3:]
    assert len(set(first)) == 6, "every step has a seed of its own"
    assert not set(drawn(range(6), 1)) & set(first)


def test_the_first_weights_follow_from_the_seed(feature_root):
    config = {"root": str(feature_root), "data": "features", "source": "alpha", "target": "beta", "split": "3/2/1", "steps": 1,
              "device": "cpu"}  # fmt: skip
    weights = []
    for before, seed in ((1, 0), (2, 0), (1, 3)):
        torch.manual_seed(before)
        weights.append(build(RunConfig(**config, seed=seed)).method.state_dict()["heads.heads.0.weight"])
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_target_batches_are_shuffled_anew_in_every_pass():
    batches = ShuffledBatches(40, 10, seed=0)
    passes = [np.concatenate([batches(4 * number + i) for i in range(4)]).tolist() for number in range(3)]
    assert len(set(map(tuple, passes))) == 3


def test_features_of_other_weights_are_not_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path / "images")
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        torch.save(SmallCNN().state_dict(), tmp_path / "w.pth")
        config = RunConfig(root=str(tmp_path / "images"), data="folder", source="alpha", target="beta", arch="small_cnn",
                           weights=str(tmp_path / "w.pth"), freeze_backbone=True, workers=0, batch_size=4,
                           image_size=32, device="cpu")  # fmt: skip
        found.append(build(config).target.features)
    assert not torch.equal(*found)


def test_clearing_removes_first_what_marks_a_run_as_complete(tmp_path, monkeypatch):
    recorder, removed = Recorder(tmp_path), []
    monkeypatch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: removed.append(self.name))
    recorder.clear()
    assert removed[0] == "results.json" and {"last.pt", "results.jsonl", "report.html"} < set(removed)


def test_a_tie_keeps_the_given_label():
    history = type(
        "History", (), {"loss": [1.0, 1.0, 1.0], "probs": [[0.5, 0.5, 0], [0, 0.5, 0.5], [0.4, 0.6, 0]], "visits": [1] * 3}
    )
    assert audit_labels(history, np.array([1, 2, 0])).suggested.tolist() == [1, 2, 1]


@pytest.mark.slow
def test_a_run_on_images_repeats(tmp_path, monkeypatch):
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path / "cache"))
    write_images(tmp_path / "images")
    for name in ("one", "two"):
        torch.manual_seed(len(name) + (name == "two"))
        assert (
            train.main([*images_flags(tmp_path / "images"), "--image-size", "32", "--steps", "3", "--log", str(tmp_path / name)])
            == 0
        )
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (tmp_path / "two" / "model.safetensors").read_bytes()
