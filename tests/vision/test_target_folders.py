"""Targets with subfolders: classes if they are named like the source's, else new images without labels."""

import json
import os
import shutil

import pytest
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.vision.datasets.catalog import open_data


@pytest.fixture
def photos(image_root, tmp_path):
    """The source ``photo``, with the classes red, green and blue."""
    shutil.copytree(image_root / "photo", tmp_path / "data" / "photo")
    (tmp_path / "data" / "new").mkdir()
    return tmp_path / "data"


def put(folder, count=2):
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (20, 24), (40 * i, 90, 120)).save(folder / f"{i}.png")


def target_of(photos, **more):
    data = open_data(str(photos), "auto", "photo", "new", **more)
    paths = [os.path.relpath(path, photos / "new") for path, _ in data.target.samples]
    return data, paths, {label for _, label in data.target.samples}


def test_folders_by_month_are_new_images(photos, caplog):
    put(photos / "new" / "2024-05")
    put(photos / "new" / "2024-06" / "cards" / "b")
    put(photos / "new", 1)
    data, paths, labels = target_of(photos)
    assert paths == ["0.png", "2024-05/0.png", "2024-05/1.png", "2024-06/cards/b/0.png", "2024-06/cards/b/1.png"]
    assert labels == {None} and data.split.shared == ("blue", "green", "red") and not data.split.target_private
    (line,) = caplog.messages
    assert line == (
        f"{photos}/new is unlabelled: none of its folders (2024-05, 2024-06) is named like a class of the source; "
        "all 5 images below it are read"
    )


def test_folders_named_like_classes_are_labels(photos, caplog):
    for name in ("red", "green", "violet"):
        put(photos / "new" / name)
    data, _, labels = target_of(photos)
    assert str(data.split) == "2/1/1" and None not in labels and caplog.messages == []


def test_the_flag_forces_it_and_says_nothing(photos, caplog):
    for name in ("red", "green", "violet"):
        put(photos / "new" / name)
    data, paths, labels = target_of(photos, target_unlabelled=True)
    assert labels == {None} and len(paths) == 6 and len(data.split.shared) == 3 and caplog.messages == []


def test_one_class_beside_loose_photographs_can_be_read_in_two_ways(photos):
    put(photos / "new" / "red")
    put(photos / "new" / "more")
    put(photos / "new", 3)
    with pytest.raises(
        UserError, match="holds 3 images and a folder red.*no labels, give target_unlabelled=True.*class folders$"
    ):
        target_of(photos)
    _, paths, labels = target_of(photos, target_unlabelled=True)
    assert labels == {None} and len(paths) == 7
    for i in range(3):
        (photos / "new" / f"{i}.png").unlink()
    assert str(target_of(photos)[0].split) == "1/2/1"


def test_a_class_that_is_spelled_otherwise_is_no_month(photos):
    put(photos / "new" / "Red")
    with pytest.raises(UserError, match="new/Red is spelled otherwise than the source's class red: rename it, or give"):
        target_of(photos)
    assert target_of(photos, target_unlabelled=True)[2] == {None}


def test_other_data_have_no_such_flag(feature_root):
    with pytest.raises(UserError, match="target_unlabelled=True is for own folders, the data set is features"):
        open_data(str(feature_root), "auto", "alpha", "beta", target_unlabelled=True)


def test_a_run_on_folders_by_month(photos, run_example, tmp_path, caplog):
    put(photos / "new" / "2024-05", 4)
    put(photos / "new" / "2024-06", 4)
    words = "-s photo -t new -a small_cnn --image-size 32 -j 0 -m mixture --freeze-backbone --no-report".split()
    for flag in ([], ["--target-unlabelled"]):
        caplog.clear()
        code, _, err = run_example("noisy_unida", photos, *words, *flag, "--log", "run", "--overwrite")
        assert code == 0, err
        assert ("is unlabelled: none of its folders" in caplog.text) == (not flag)
        assert "os" not in json.loads((tmp_path / "run" / "results.json").read_text())
        lines = (tmp_path / "run" / "predictions.csv").read_text().splitlines()
        assert len(lines) == 9 and "2024-06" in lines[-1]
    code, _, err = run_example("noisy_unida", photos, "-s", "new", "-t", "photo", *words[4:], "--log", "again")
    assert code == 0, err  # as a source, its folders are classes
