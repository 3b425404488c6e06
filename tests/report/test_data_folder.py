"""Thumbnails and links: one image reader, files of the data folder only."""

import io
import os

import pytest
from PIL import EpsImagePlugin, Image

from tllib_ext.images import load_image
from tllib_ext.report.data_folder import DataFolder, thumbnail

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    Image.new("RGB", (8, 8)).save(root / "a b#?.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "outside.png")
    return DataFolder({"root": str(root), "data": "folder"}, tmp_path / "runs" / "one")


def test_an_eps_file_never_reaches_its_loader(tmp_path, monkeypatch):
    started = []  # an error would not show: every error of an image gives no thumbnail

    def reached(*args, **kwargs):
        started.append(args)
        raise SyntaxError

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", reached)
    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "__init__", reached)
    (tmp_path / "x.jpg").write_bytes(EPS)
    Image.init()  # registers every format, the EPS reader among them
    assert thumbnail(str(tmp_path / "x.jpg")) is None and not started


@pytest.mark.parametrize("path", ["../outside.png", "/etc/hostname", "", ".", "\0", "\udcff\ud800", "x/../../outside.png"])
def test_paths_outside_of_the_data_folder_are_names(data, path, monkeypatch):
    opened = []
    monkeypatch.setattr("tllib_ext.report.data_folder.load_image", lambda *args, **kwargs: opened.append(args))
    path = os.path.join(data.root, path) if path else path
    assert data.find(path) is None and data.link(path) == "" and data.thumbnails([path], 9, 10**6) == {} and not opened


def test_a_folder_whose_name_begins_alike_is_outside(data, tmp_path):
    (tmp_path / "data2").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "data2" / "x.png")
    assert data.find(str(tmp_path / "data2" / "x.png")) is None


def test_links_lead_from_the_page_to_the_file(data):
    path = os.path.join(data.root, "a b#?.png")
    assert data.name(path) == "a b#?.png" and data.link(path) == "../../data/a%20b%23%3F.png"


def test_data_without_images_and_the_embedded_data(tmp_path, monkeypatch):
    assert DataFolder({"root": str(tmp_path), "data": "features"}, tmp_path).root is None
    assert DataFolder({"root": None, "data": "other"}, tmp_path).name("x/y.png") == "x/y.png"
    monkeypatch.setenv("TLLIB_EXT_CACHE", str(tmp_path))
    assert DataFolder({"root": None, "data": "Glyphs"}, tmp_path).root == str(tmp_path / "glyphs")


def test_thumbnails_are_small_and_never_an_error(tmp_path):
    Image.new("CMYK", (3000, 2000)).save(tmp_path / "large.jpg")
    Image.new("P", (1, 1)).save(tmp_path / "tiny.gif")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    names = ["large.jpg", "tiny.gif", "broken.png", "absent.png"]
    folder, paths = DataFolder({"root": str(tmp_path)}, tmp_path), [str(tmp_path / name) for name in names]
    made = folder.thumbnails(paths, 9, 10**6)
    assert list(made) == paths[:2] and all(len(data) < 15_000 for data in made.values())
    assert max(Image.open(io.BytesIO(made[paths[0]])).size) == 112
    assert list(folder.thumbnails(paths, 1, 10**6)) == paths[:1] and folder.thumbnails(paths, 9, 10) == {}


def test_reduced_reading_turns_and_decodes_a_fraction(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (1600, 800)).save(tmp_path / "a.jpg", exif=exif)
    assert load_image(tmp_path / "a.jpg").size == (800, 1600)
    decoded = []
    monkeypatch.setattr("tllib_ext.images._eight_bits", lambda image: decoded.append(image.size) or image)
    assert load_image(tmp_path / "a.jpg", max_side=200).size == (100, 200) and decoded == [(200, 400)]
