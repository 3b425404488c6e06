"""A saved run on new images: the run's own answers, from the run folder alone; bad files and bad runs."""

import csv
import json
import shutil

import numpy as np
import pytest

from tllib_ext.errors import UserError
from tllib_ext.training.checkpoint import load_model
from tllib_ext.training.image_files import find_images
from tllib_ext.training.saved_run import load_run


def rows_of(text):
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module", params=["trained", "frozen", "mixture"])
def saved(request, image_root, tmp_path_factory):
    """A run folder and the path it had its images at; the images are elsewhere by now."""
    from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run
    from tllib_ext.training.build import build
    from tllib_ext.training.trainer import train

    folder, cache = tmp_path_factory.mktemp(request.param), tmp_path_factory.mktemp("cache")
    parser = Parser()
    add_run_arguments(parser)
    words = [
        image_root,
        *"-d folder -s photo -t sketch -a small_cnn --image-size 32 -b 4 --no-report -j 0 --log".split(),
        folder / "run",
    ]
    words += ["--steps", 2] if request.param != "mixture" else ["-m", "mixture"]
    words += ["--freeze-backbone"] * (request.param != "trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TLLIB_EXT_CACHE", str(cache))
        train(build(parse_run(parser, [str(word) for word in words])))
    alone = folder / "alone"  # only the model: nothing else of the run may be needed
    alone.mkdir()
    shutil.copy(folder / "run/model.safetensors", alone)
    return folder / "run", alone


def test_the_runs_own_predictions(saved, run_example, image_root):
    run, alone = saved
    expected = rows_of((run / "predictions.csv").read_text())
    code, out, err = run_example("predict", alone, *(row["path"] for row in expected))
    assert code == 0, err
    got = rows_of(out)
    for row in (*expected, *got):
        row.pop("label")
    assert got == expected  # to the last digit
    assert f"{len(expected)} of {len(expected)} files labelled" in err


def test_a_folder_means_every_image_in_it(saved, run_example, image_root):
    run, alone = saved
    expected = {row["path"]: row for row in rows_of((run / "predictions.csv").read_text())}
    code, out, _ = run_example("predict", alone, image_root / "sketch", "--out", "predictions.csv")
    assert (code, out) == (0, "")
    got = rows_of(open("predictions.csv").read())
    assert [row["path"] for row in got] == sorted(expected)
    for row in got:
        assert row["predicted"] == expected[row["path"]]["predicted"]
        assert float(row["score"]) == pytest.approx(float(expected[row["path"]]["score"]), abs=1e-4)


def test_json_has_every_probability(saved, run_example, image_root):
    _, alone = saved
    code, out, err = run_example("predict", alone, image_root / "new", "--format", "json")
    records = json.loads(out)
    assert code == 0 and len(records) == 6, err
    assert all(sum(record["probabilities"].values()) == pytest.approx(1, abs=1e-5) for record in records)
    for record in records:
        best = max(record["probabilities"], key=record["probabilities"].get)
        assert record["predicted"] == ("unknown" if record["score"] > record["threshold"] else best)
    run_example("predict", alone, image_root / "new", "--out", "p.json")
    assert json.load(open("p.json")) == records


def test_unreadable_files_are_named_and_passed_over(saved, run_example, image_root, tmp_path):
    _, alone = saved
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no")
    (tmp_path / "=note\x1b[2J.txt").write_text("no image")
    files = [tmp_path / "broken.png", image_root / "new/0.png", tmp_path / "missing.png", tmp_path / "=note\x1b[2J.txt"]
    code, out, err = run_example("predict", alone, *files)
    assert code == 0 and [row["index"] for row in rows_of(out)] == ["1"]
    skipped = [line for line in err.splitlines() if line.startswith("skipped")]
    assert len(skipped) == 3 and "broken.png" in skipped[0] and "missing.png" in skipped[1]
    assert "\x1b" not in err and "1 of 4 files labelled" in err


def one_line(code, err, *words):
    assert code == 2 and len(err.strip().splitlines()) == 1 and err.startswith("error: "), err
    assert all(word in err for word in words), err


def test_bad_runs_are_one_line(saved, run_example, image_root, tmp_path):
    _, alone = saved
    image = image_root / "new/0.png"
    one_line(*run_example("predict", tmp_path / "nowhere", image)[::2], "no run folder")
    (tmp_path / "empty").mkdir()
    one_line(*run_example("predict", tmp_path / "empty", image)[::2], "no model in")
    (tmp_path / "empty/model.safetensors").write_bytes(b"\x00" * 100)
    one_line(*run_example("predict", tmp_path / "empty", image)[::2], "cannot read the model")
    (tmp_path / "hollow").mkdir()
    one_line(*run_example("predict", alone, tmp_path / "hollow")[::2], "no image in")
    code, _, err = run_example("predict", alone, tmp_path / "empty")
    assert code == 2 and "1 file passed over: 1 .safetensors" in err
    one_line(*run_example("predict", alone, image, "--out", tmp_path / "no/such.csv")[::2], "no folder")
    code, out, err = run_example("predict", alone, tmp_path / "missing.png")
    assert (code, out) == (2, "") and "none of 1 files is a readable image" in err


@pytest.mark.parametrize(("change", "words"), [
    ({"format": 99}, "version"), ({"arch": None}, "no image backbone"), ({"method": "divergance"}, "did you mean"),
    ({"hparams": {"no_such": 1}}, "no_such"), ({"split": {"shared": ["a", "b"]}}, "does not fit"),
    ({"image": {}}, "another version"), ({"split": 3}, "another version"),
])  # fmt: skip
def test_a_model_of_something_else_is_one_line(saved, run_example, image_root, tmp_path, change, words):
    from safetensors import safe_open
    from safetensors.torch import save_file

    _, alone = saved
    with safe_open(alone / "model.safetensors", "pt") as opened:
        metadata, tensors = json.loads(opened.metadata()["tllib_ext"]), {name: opened.get_tensor(name) for name in opened.keys()}
    (tmp_path / "other").mkdir()
    save_file(tensors, tmp_path / "other/model.safetensors", {"tllib_ext": json.dumps({**metadata, **change})})
    one_line(*run_example("predict", tmp_path / "other", image_root / "new/0.png")[::2], words)


def test_a_run_on_features_says_so(run_example, feature_root):
    words = [feature_root, "-s", "alpha", "-t", "beta", "--split", "2/2/2", "--steps", 2, "-b", 8, "--no-report", "--log", "run"]
    assert run_example("noisy_unida", *words)[0] == 0
    one_line(*run_example("predict", "run", "x.png")[::2], "no image backbone")


def test_a_loaded_run_is_ready_to_use(saved):
    _, alone = saved
    run = load_run(alone)
    assert not run.method.training and not any(p.requires_grad for p in run.method.parameters())
    assert run.split.to_dict() == load_model(alone / "model.safetensors")[0]["split"]
    assert isinstance(np.asarray(run.method.threshold).item(), float)
    with pytest.raises(UserError):
        load_run(alone / "model.safetensors")


def test_folders_are_searched_in_order(tmp_path):
    for name in ("b/2.PNG", "b/10.jpg", "a/x.jpeg", "a/.hidden.png", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = find_images([str(tmp_path / "b"), str(tmp_path / "a"), "z.txt"])
    assert [f.removeprefix(str(tmp_path)) for f in found] == ["/b/10.jpg", "/b/2.PNG", "/a/x.jpeg", "z.txt"]
