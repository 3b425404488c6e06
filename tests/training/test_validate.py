"""Validators of a run: which source images they look at."""

from dataclasses import replace

import numpy as np
import pytest

from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.predict import predict_domain
from tllib_ext.training.trainer import train
from tllib_ext.training.validate import validators


def test_held_out_images_are_not_trained_on_and_measured(feature_root, tmp_path):
    config = RunConfig(root=str(feature_root), data="features", source="alpha", target="beta", split="3/2/1", noise="pair",
                       rate=0.25, steps=2, batch_size=8, method="credo", no_report=True, device="cpu")  # fmt: skip
    whole = build(config)
    parts = build(replace(config, hold_out=0.2, log=str(tmp_path / "run")))
    held = parts.held_out.view
    assert len(held) + len(parts.noisy) == len(whole.noisy) and not set(held.paths) & set(parts.noisy.paths)
    assert dict(held.samples).items() <= dict(whole.noisy.samples).items()  # the same draw of the noise
    train(parts)
    found = validators(parts, predict_domain(parts.method, parts.target))
    guessed = np.asarray(predict_domain(parts.method, parts.held_out).probs).argmax(axis=1)
    assert found["val_held_out_accuracy"] == pytest.approx((guessed == held.targets).mean())  # given labels, not corrected ones
    assert "val_source_accuracy" not in found and found["val_dev"] is not None


def test_the_seed_of_the_run_chooses_what_is_held_out(feature_root):
    config = RunConfig(root=str(feature_root), data="features", source="alpha", target="beta", split="3/2/1", noise="pair",
                       rate=0.25, noise_seed=0, method="mixture", hold_out=0.3, device="cpu")  # fmt: skip
    first, again, other = (build(replace(config, seed=seed)).held_out.view for seed in (0, 0, 1))
    assert first.paths == again.paths and set(first.paths) != set(other.paths)
    assert len(first) == len(other) and np.array_equal(np.sort(first.targets), np.sort(other.targets))
