"""Class folders that would change the problem silently: unreadable, empty, or full of files that are no images."""

import os
import shutil

import pytest
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.datasets.imagelist import ImageFolder


@pytest.fixture
def root(image_root, tmp_path):
    return shutil.copytree(image_root, tmp_path / "data")


@pytest.fixture
def unreadable(monkeypatch):
    """``unreadable(folder)`` makes it one of mode 000, for root too."""
    scandir = os.scandir

    def forbid(folder):
        def scan(path="."):
            if os.fspath(path) == str(folder):
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", scan)

    return forbid


@pytest.mark.parametrize("name", ["sketch/green", "sketch/green/more", "photo/red", "sketch"])
def test_an_unreadable_folder_is_an_error_that_names_it(root, unreadable, name):
    (root / name).mkdir(exist_ok=True)
    unreadable(root / name)
    with pytest.raises(UserError, match=f"cannot read the folder {root / name}: Permission denied"):
        open_data(str(root), source="photo", target="sketch")


def test_a_class_whose_files_have_other_suffixes_is_an_error_that_names_it(root, monkeypatch):
    for file in (root / "sketch" / "green").iterdir():
        file.rename(file.with_suffix(".HEIC"))
    monkeypatch.setattr("tllib_ext.images.heif", lambda: False)
    with pytest.raises(
        UserError, match=f"no images in {root / 'sketch' / 'green'}: its files are 8 .heic.*pip install pillow-heif"
    ):
        open_data(str(root), source="photo", target="sketch")


def test_an_empty_class_folder_is_an_error_that_names_it(root):
    (root / "photo" / "violet").mkdir()
    with pytest.raises(UserError, match="photo/violet: it is empty; remove the folder"):
        open_data(str(root), source="photo", target="sketch")


def test_hidden_folders_and_classes_that_are_not_asked_for_do_not_count(root):
    (root / "photo" / ".thumbnails").mkdir()
    (root / "photo" / "violet").mkdir()
    assert len(ImageFolder(root / "photo", ["blue", "red"])) == 16


def test_files_that_are_passed_over_are_counted_named_and_logged(root, caplog, monkeypatch):
    monkeypatch.setattr("tllib_ext.images.heif", lambda: False)
    for name in ("a.txt", "b.TXT", "c.json", "LICENSE", ".hidden"):
        (root / "photo" / "red" / name).write_text("")
    (root / "new" / "IMG_1.HEIC").write_text("")
    shutil.copy(next((root / "photo" / "red").glob("*.png")), root / "photo" / "beside.png")
    data = open_data(str(root), source="photo", target="new")
    assert data.notes == [
        f"{root}/photo: 5 files passed over: 2 .txt, 1 .json, 1 .png, 1 no suffix; 1 of them images beside the class folders, "
        "without a class. Passed over: red/LICENSE, red/a.txt, red/b.TXT, red/c.json, beside.png",
        f"{root}/new: 1 file passed over: 1 .heic; HEIC is read after: pip install pillow-heif. Passed over: IMG_1.HEIC",
    ]
    assert [record.getMessage() for record in caplog.records] == data.notes
    assert open_data(str(root), source="photo", target="sketch", split="2/1/1").notes == data.notes[:1]


def test_heic_is_read_where_pillow_heif_is_installed(root):
    heif = pytest.importorskip("pillow_heif")
    image = Image.new("RGB", (16, 12), (200, 30, 30))
    heif.from_pillow(image).save(root / "new" / "IMG_2.HEIC")
    folder = ImageFolder(root / "new")
    assert str(root / "new" / "IMG_2.HEIC") in [path for path, _ in folder.samples] and not folder.note
    assert load_image(root / "new" / "IMG_2.HEIC").size == (16, 12)


def test_nothing_is_said_where_nothing_is_passed_over(root, caplog):
    assert open_data(str(root), source="sketch", target="new").notes == [] and not caplog.records
