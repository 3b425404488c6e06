"""Few new photographs: the batch shrinks to what is there; the settings of other data are kept."""

import json
import shutil

import pytest

WORDS = ("-s", "photo", "-t", "new", "-a", "small_cnn", "--image-size", "32", "-j", "0", "--no-report", "--log", "run")


@pytest.fixture
def photos(image_root, tmp_path):
    """24 labelled photographs and six new ones."""
    shutil.copytree(image_root / "photo", tmp_path / "data" / "photo")
    shutil.copytree(image_root / "new", tmp_path / "data" / "new")
    return tmp_path / "data"


@pytest.mark.parametrize("method", [["-m", "mixture", "--freeze-backbone"], ["--steps", "3", "--drop-rate", "0.1"]])
def test_six_photographs_are_a_batch(method, photos, run_example, tmp_path):
    code, out, err = run_example("noisy_unida", photos, *WORDS, *method)
    assert code == 0, err
    assert out.count("batches of 6 in place of 36: new has 6 images\n") == 1
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["batch_size"] == 6 and "-b" not in config["command"] and "--batch-size" not in config["command"]
    assert len((tmp_path / "run" / "predictions.csv").read_text().splitlines()) == 7


def test_a_batch_that_fits_stays(photos, run_example, tmp_path):
    code, out, err = run_example("noisy_unida", photos, *WORDS, "--steps", "2", "-b", "5")
    assert code == 0 and "in place of" not in out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["batch_size"] == 5


def test_an_interrupted_run_goes_on_with_the_same_batch(photos, run_example, tmp_path):
    words = (photos, *WORDS, "--steps", "3")
    assert run_example("noisy_unida", *words)[0] == 0
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "results.json").unlink()
    code, out, err = run_example("noisy_unida", *words)
    assert code == 0 and "going on at step 3 of 3" in out + err, err
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


def test_one_photograph_cannot_be_trained_on(photos, run_example, tmp_path):
    for file in sorted((photos / "new").iterdir())[1:]:
        file.unlink()
    code, _, err = run_example("noisy_unida", photos, *WORDS, "--steps", "2")
    assert code == 2 and "at least two samples per batch" in err and err.count("\n") == 1
