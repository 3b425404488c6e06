"""What a run says about unknown: the share, the target model's word, and a warning where nearly all or nothing is unknown."""

import json

import numpy as np
import pytest

from tllib_ext.target import estimate_target
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.target_output import describe_unknown
from tllib_ext.training.trainer import train


@pytest.fixture(scope="module")
def domains():
    """Features and labels of two domains; half of the target is of unknown classes."""
    rng = np.random.default_rng(0)
    means = 3 * rng.standard_normal((6, 24))
    ys, yt = np.repeat(np.arange(4), 40), np.repeat([0, 1, 4, 5], 40)
    return means[ys] + rng.standard_normal((160, 24)), ys, means[yt] + rng.standard_normal((160, 24)) + 0.3, yt


def test_nearly_everything_or_nothing_unknown_is_a_warning_with_numbers_and_a_remedy(domains):
    source, ys, target, _ = domains
    model = estimate_target(source, np.eye(4)[ys], target)
    for share in (0.99, 0.0, 0.9):
        (text,) = describe_unknown(share, model, decides=False)
        assert "50%" in text and "mixture" in text and f"{share:.0%}"[:2] in text
    assert describe_unknown(0.5, model, decides=False) == []
    assert "99.0%" in describe_unknown(0.99, None, decides=False)[0] and describe_unknown(0.3, None, decides=False) == []
    assert describe_unknown(0.99, model, decides=True) == model.warnings


@pytest.mark.parametrize("method", ["source_only", "mixture"])
def test_a_run_says_how_much_is_unknown_and_groups_it(domains, method, tmp_path, capsys):
    source, ys, target, yt = domains
    names = np.array(["a", "b", "c", "d", "u", "v"])
    for name, x, y in (("s", source, ys), ("t", target, yt)):
        np.savez(tmp_path / f"{name}.npz", features=x.astype(np.float32), labels=y, classes=names)
    config = RunConfig(root=str(tmp_path), data="features", source="s", target="t", split="2/2/2", method=method,
                       steps=3 if method == "source_only" else None, noise="none", log=str(tmp_path / "run"))  # fmt: skip
    train(build(config))
    facts = json.loads((tmp_path / "run" / "target_model.json").read_text())
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert facts["called_unknown"] == results["predicted_unknown"] and facts["share"] == pytest.approx(0.5, abs=0.1)
    assert facts["decides"] == (method == "mixture") and "of the target called unknown" in capsys.readouterr().out
    groups = np.array(facts["groups"])
    assert (groups >= 0).mean() == facts["called_unknown"]
    if method == "mixture":
        assert len(set(groups[80:120]) | set(groups[120:])) >= 2 and set(groups[:80]) == {-1}
