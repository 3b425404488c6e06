"""What docs/target_model.md claims of the development scenarios holds in their records."""

import json

import numpy as np
import pytest
from conftest import ROOT

LEAST = {"style": (0.50, 0.50), "transfer": (0.785, 0.77), "halves": (0.745, 0.72)}


def records(name=""):
    lines = (ROOT / "records" / f"target_scenarios{name}.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["command"].startswith("python tools/target_scenarios.py data")
    return [json.loads(line) for line in lines[1:]]


def mean(rows, key, **keys):
    return np.mean([r[key] for r in rows if all(r[k] == v for k, v in keys.items()) and r[key] is not None])


def test_there_are_enough_scenarios_and_both_models_have_the_same():
    now, before = records(), records("_before")
    keys = ("group", "task", "kind", "noise", "seed", "images", "classes", "true_share")
    assert len(now) >= 240 and [[r[k] for k in keys] for r in now] == [[r[k] for k in keys] for r in before]
    assert {r["seed"] for r in now} == {0, 1, 2} and len({r["kind"] for r in now}) == 4


@pytest.mark.parametrize("group", LEAST)
def test_the_model_on_clean_labels(group):
    found = [mean(records(), key, group=group, noise="clean") for key in ("os", "h_score")]
    assert found[0] >= LEAST[group][0] and found[1] >= LEAST[group][1]


def test_it_is_better_than_the_model_before():
    now, before = records(), records("_before")
    for group in LEAST:
        assert mean(now, "os", group=group) > mean(before, "os", group=group)
    assert mean(now, "h_score") > mean(before, "h_score") + 0.04
    assert mean(now, "closed_accuracy") > mean(before, "closed_accuracy")


def test_the_interval_is_honest():
    rows = records()
    error, known = np.array([abs(r["share"] - r["true_share"]) for r in rows]), np.array([r["known"] for r in rows])
    assert np.mean([r["low"] - 1e-9 <= r["true_share"] <= r["high"] + 1e-9 for r in rows]) >= 0.9
    assert (known & (error > 0.1)).mean() <= 0.05 and (~known)[error <= 0.1].mean() <= 0.4
