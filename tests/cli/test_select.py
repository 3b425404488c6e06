"""``tllib-ext select``: real runs record validators, and the command ranks them."""

import json

import numpy as np
import pytest

from tllib_ext.cli.main import main
from tllib_ext.evaluation.validators import VALIDATORS


def write(folder, **last):
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    lines = [{"step": 1, "val_snd": 9.0, "os": 0.9}, {"step": 2, **last}]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs_are_ranked_by_their_last_evaluation(tmp_path, capsys):
    write(tmp_path / "grid" / "good", val_entropy=0.1, val_dev=0.1, val_snd=1.0, os=0.8)
    write(tmp_path / "grid" / "middle", val_entropy=0.2, val_dev=0.2, val_snd=2.0, os=0.6)
    write(tmp_path / "grid" / "bad", val_entropy=0.4, val_dev=0.3, val_snd=3.0, os=0.5)
    out = tmp_path / "out.json"
    assert main(["select", str(tmp_path / "grid"), "--json", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("good")
    result = json.loads(out.read_text())
    assert [run["run"].rpartition("/")[2] for run in result["runs"]] == ["good", "middle", "bad"]
    assert result["correlation"] == {"val_entropy": 1, "val_snd": -1, "val_dev": 1, "mean rank": 1}
    assert main(["select", str(tmp_path / "grid"), "--by", "snd"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("bad")


@pytest.mark.parametrize("words, message", [([], "no finished run"), (["--by", "agreement"], "none of these runs has")])
def test_one_line_for_what_cannot_be_ranked(tmp_path, capsys, words, message):
    if words:
        write(tmp_path / "a", val_entropy=0.1)
    assert main(["select", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_every_evaluation_of_a_run_records_them_without_target_labels(tmp_path):
    rng, labels = np.random.RandomState(1), np.repeat(np.arange(3), 30)
    for domain in ("one", "two"):
        more = {"labels": labels} if domain == "one" else {}
        x = rng.randn(90, 6) + 4 * np.eye(6)[labels]
        np.savez(tmp_path / f"{domain}.npz", features=x, classes=np.array(list("abc")), **more)
    words = [str(tmp_path), "-d", "features", "-s", "one", "-t", "two", "--steps", "20", "--eval-every", "10", "--no-report"]
    held = "val_held_out_accuracy"  # only of a run that holds images out
    for method, absent in (("divergence", {"val_separation", held}), ("credo", {held})):
        assert main(["train", *words, "-m", method, "--log", str(tmp_path / method)]) == 0
        lines = [json.loads(line) for line in (tmp_path / method / "results.jsonl").read_text().splitlines()]
        assert len(lines) == 2 and all(set(VALIDATORS) - set(line) == absent for line in lines)
        assert all(0 <= line["val_entropy"] <= 1 and 0 <= line["val_agreement"] <= 1 for line in lines)
