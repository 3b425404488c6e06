"""Images as they are in the world: what can be read is read right, what cannot is named, all of it, before training."""

import json
import os
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.vision.datasets.imagelist import ImageFolder, ImageList
from tllib_ext.vision.datasets.pixels import bad_images, without_images

RUN = tuple("-s photo -t sketch -a small_cnn --image-size 32 -b 4 --steps 2 -j 2 --no-report --log run".split())


def png_header(width, height):
    """A PNG of a few bytes that says it is very large."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", size), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.fixture
def square():
    """Red left, green right, blue below."""
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:5, :6, 0], pixels[:5, 6:, 1], pixels[5:, :, 2] = 255, 255, 255
    return pixels


def test_kinds_of_images(tmp_path, square):
    rgb = Image.fromarray(square)
    rgb.save(tmp_path / "a.png")
    rgb.save(tmp_path / "wrong_extension.jpg", format="PNG")
    rgb.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "palette.gif")
    rgb.convert("RGBA").save(tmp_path / "alpha.png")
    rgb.save(tmp_path / "a.bmp")
    rgb.save(tmp_path / "a.tiff")
    rgb.save(tmp_path / "a.webp", lossless=True)
    rgb.save(tmp_path / "a.ppm")
    rgb.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("RGB", (12, 8), "white")] * 3)
    tags = Image.Exif()
    tags[0x0112] = 6  # to be turned by a quarter
    rgb.rotate(90, expand=True).save(tmp_path / "turned.png", exif=tags)
    for file in sorted(tmp_path.iterdir()):
        got = np.asarray(load_image(str(file)))
        assert got.shape == square.shape and np.abs(got.astype(int) - square).max() <= 8, file.name
    rgb.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=95)
    got = np.asarray(load_image(tmp_path / "cmyk.jpg"))
    assert got.shape == square.shape and got[1, 2].argmax() == 0 and got[7, 5].argmax() == 2
    Image.new("RGB", (1, 1), (10, 20, 30)).save(tmp_path / "dot.png")
    assert load_image(tmp_path / "dot.png").getpixel((0, 0)) == (10, 20, 30)


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    grey = np.array([[0, 257, 32768], [65535, 51400, 128]], np.uint16)
    Image.fromarray(grey).save(tmp_path / "deep.png")
    Image.fromarray(grey).save(tmp_path / "deep.tiff")
    for name in ("deep.png", "deep.tiff"):
        got = np.asarray(load_image(tmp_path / name))
        assert got[..., 0].tolist() == [[0, 1, 128], [255, 200, 0]] and got.shape == (2, 3, 3)


def test_a_transparent_palette_does_not_warn(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(tmp_path / "p.png", transparency=b"\xff\x80")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert load_image(tmp_path / "p.png").getpixel((0, 0)) == (200, 100, 50)
        assert warnings.filters[0][0] == "always", "the filters are as they were"
    assert said == []


@pytest.fixture
def bad_root(image_root, tmp_path):
    """``image_root`` with everything that can be wrong with a file in it; (root, names of the bad ones)."""
    import shutil

    root = tmp_path / "data"
    shutil.copytree(image_root, root)
    whole = (root / "photo" / "red" / "0.png").read_bytes()
    bad = {
        "photo/red/truncated.png": whole[:90],
        "photo/red/zero bytes.png": b"",
        "photo/green/text,\"quoted\".jpg": b"this is no image",
        "sketch/red/huge.png": png_header(20_000, 20_000),
        "sketch/red/large.png": png_header(10_000, 10_000),
        "sketch/green/script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n",
    }  # fmt: skip
    for name, data in bad.items():
        (root / name).write_bytes(data)
    os.symlink("nowhere.png", root / "sketch" / "grey" / "link.png")
    os.mkfifo(root / "sketch" / "grey" / "pipe.png")
    with open(os.fsencode(root / "photo" / "blue") + b"/\xff\xfe.png", "wb") as file:
        file.write(whole[:80])
    good = {b"sp ace.png": whole, b"new\nline.png": whole, b"\xe9t\xe9.png": whole, b"quo'te\".png": whole, b"a,b.png": whole}
    for name, data in good.items():
        with open(os.fsencode(root / "photo" / "green") + b"/" + name, "wb") as file:
            file.write(data)
    return root, [*bad, "sketch/grey/link.png", "sketch/grey/pipe.png", "photo/blue/\\udcff\\udcfe.png"]


def test_check_lists_every_offender_before_anything_is_written(run_example, bad_root, tmp_path):
    root, bad = bad_root
    code, out, err = run_example("noisy_unida", root, *RUN, "--check")
    assert code == 2 and len(err.splitlines()) == 1 and f"{len(bad)} of" in err and "--on-bad-image skip" in err
    for name in bad:
        assert sum(f"{root}/{name}" in line for line in out.splitlines()) == 1, (name, out)
    assert out.count("too large to be decoded safely") == 2
    assert f"checked 62 images: {len(bad)} cannot be used" in out
    assert not (tmp_path / "run").exists()


def test_without_a_check_the_first_offender_stops(run_example, bad_root):
    root, bad = bad_root
    code, _, err = run_example("noisy_unida", root, *RUN)
    assert code == 2 and len(err.splitlines()) == 1 and any(name in err for name in bad)


def test_skip_trains_on_the_rest_and_says_so(run_example, bad_root, image_root, tmp_path):
    root, bad = bad_root
    code, out, err = run_example("noisy_unida", root, *RUN, "--on-bad-image", "skip", "--noise", "pair")
    assert code == 0, err
    assert f"checked 62 images: {len(bad)} cannot be used" in out
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert results["skipped_images"] == len(bad) == len(config["skipped_images"])
    assert "photo (29 images) to sketch (24 images)" in out
    rows = (tmp_path / "run" / "predictions.csv").read_text(errors="surrogateescape")
    assert "huge.png" not in rows and "0.png" in rows
    # an image that was mended is another list: the run does not go on with it unasked
    (tmp_path / "run" / "results.json").unlink()
    (root / "photo" / "red" / "truncated.png").write_bytes((root / "photo" / "red" / "0.png").read_bytes())
    code, _, err = run_example("noisy_unida", root, *RUN, "--on-bad-image", "skip", "--noise", "pair")
    assert code == 2 and "another, unfinished run" in err


def test_a_class_without_a_readable_image_is_an_error(run_example, image_root, tmp_path):
    import shutil

    shutil.copytree(image_root, tmp_path / "data")
    for file in (tmp_path / "data" / "photo" / "red").iterdir():
        file.write_bytes(b"")
    code, _, err = run_example("noisy_unida", tmp_path / "data", *RUN, "--on-bad-image", "skip")
    assert code == 2 and "no source image of: red" in err and len(err.splitlines()) == 1


def test_good_images_pass_the_check(run_example, image_root):
    code, out, err = run_example("noisy_unida", image_root, *RUN, "--check")
    assert code == 0, err
    assert "checked 48 images: all can be used" in out


def test_the_same_offenders_whatever_the_number_of_threads(bad_root):
    root, _ = bad_root
    dataset = ImageFolder(root / "photo")
    paths = [path for path, _ in dataset.samples]
    found = [bad_images(paths, load_image, workers) for workers in (0, 1, 4)]
    assert found[0] == found[1] == found[2] and [path for path, _ in found[0]] == [p for p in paths if p in dict(found[0])]
    rest = without_images(dataset, [path for path, _ in found[0]])
    assert len(rest.samples) == len(paths) - len(found[0]) and len(dataset.samples) == len(paths)


def test_lists_stay_inside_their_root_unless_allowed(tmp_path):
    for line in ("../secret.png 0", "/etc/passwd 0", "a/../../b.png 0", "a\\..\\b.png 0", "x\0.png 0"):
        (tmp_path / "list.txt").write_text(f"ok.png 0\n{line}\n")
        with pytest.raises(UserError, match="list.txt:2"):
            ImageList(tmp_path, ["x"], tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text("../secret.png 0\nmy photos/..hidden.png 0\n")
    assert len(ImageList(tmp_path, ["x"], tmp_path / "list.txt", allow_outside=True)) == 2


@pytest.mark.slow
def test_photographs_of_200_megapixels_are_read(tmp_path):
    """In bounded memory: a JPEG is decoded at a fraction of its size."""
    photo, larger = tmp_path / "photo.jpg", tmp_path / "larger.jpg"
    image = Image.new("RGB", (16_320, 12_240), (250, 10, 10))
    image.paste((10, 10, 250), (0, 0, 8_160, 12_240))
    image.save(photo, quality=50)
    code = (
        "import sys\nfrom tllib_ext.images import load_image\nfrom PIL import Image\n"
        "before = Image.MAX_IMAGE_PIXELS\nimage = load_image(sys.argv[1])\nassert Image.MAX_IMAGE_PIXELS == before\n"
        "kilobytes = open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]\n"
        "print(*image.size, *image.getpixel((10, 10)), int(kilobytes) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, photo], capture_output=True, text=True, check=True)
    width, height, red, _, blue, megabytes = map(int, done.stdout.split())
    assert (width, height) == (8160, 6120) and red < 40 and blue > 220 and megabytes < 500
    Image.new("L", (16_320, 16_320)).save(larger)
    with pytest.raises(UserError, match="too large to be decoded safely.*256,000,000 pixels"):
        load_image(larger)
