"""Decoded images: the same pixels however they are kept, and no cache that could be wrong."""

import errno
import multiprocessing
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHARED
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.split import LabelSplit
from tllib_ext.training.domain import Domain, Steps
from tllib_ext.vision.datasets import cache
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.pixels import LazyPixels, StoredPixels, open_pixels
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.transforms import Augment

SPLIT = LabelSplit(["red", "green"], ["blue"], ["grey"])
SMALL = ("-a", "small_cnn", "--image-size", "32", "-b", 4)


class Listed:
    """The least that a pixel store asks of a view."""

    def __init__(self, paths, loader=load_image):
        self.paths, self.loader = paths, loader

    def __len__(self):
        return len(self.paths)

    def path(self, index):
        return self.paths[index]


@pytest.fixture
def view(image_root):
    return UniversalView(ImageFolder(image_root / "photo"), SPLIT, "source")


def on_disk(view, resize, folder, workers=0):
    return StoredPixels(view, resize, workers, folder=folder)


def files(folder):
    """What is in a cache folder but its locks and notes."""
    return sorted(p.name for p in Path(folder).glob("*") if p.is_file() and not p.name.endswith(".lock"))


def test_the_same_pixels_before_the_crop_as_pillow(view, tmp_path):
    expected = [np.asarray(Image.open(path).convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)) for path in view.paths]
    for mode in ("off", "ram", "disk"):
        pixels = open_pixels(view, 16, mode, workers=2, folder=tmp_path)
        np.testing.assert_array_equal(pixels.rows(range(len(view))).numpy(), np.stack(expected))


def test_the_same_pixels_as_torchvision_on_real_photographs(tmp_path):
    root = SHARED / "data" / "office31" / "dslr" / "images" / "mug"
    if not root.is_dir():
        pytest.skip("no Office-31 beside the project")
    from tllib_ext import compat

    transforms = compat.torchvision().transforms
    resize, some = transforms.Resize((256, 256)), Listed(sorted(map(str, root.glob("*.jpg")))[:3])
    expected = [np.asarray(resize(Image.open(path).convert("RGB"))) for path in some.paths]
    np.testing.assert_array_equal(on_disk(some, 256, tmp_path).rows(range(3)).numpy(), np.stack(expected))


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_alike(view, tmp_path, workers):
    batches = [np.array([3, 0, 3]), np.array([5, 1])]
    first = [rows.clone() for rows in LazyPixels(view, 16, workers).stream(batches)]
    for pixels in (StoredPixels(view, 16, workers), on_disk(view, 16, tmp_path, workers)):
        assert all(torch.equal(a, b) for a, b in zip(first, pixels.stream(batches)))


def test_a_second_pass_is_the_same(view):
    domain = Domain(view, torch.device("cpu"), LazyPixels(view, 16, workers=2), Augment(12))
    first = [x for _, x in domain.in_order(8)]
    assert all(torch.equal(a, b) for a, (_, b) in zip(first, domain.in_order(8)))


@pytest.mark.parametrize("flags", [["--freeze-backbone"], []], ids=["frozen", "trained"])
def test_decoding_starts_no_process_and_leaves_no_thread(run_example, image_root, tmp_path, flags, monkeypatch):
    words = [image_root, "-s", "photo", "-t", "sketch", *SMALL, "--steps", 2, "--cache", "off", "-j", 2]
    monkeypatch.setattr(multiprocessing.Process, "start", lambda self: pytest.fail("a process that decodes"))
    code, _, err = run_example("noisy_unida", *words, "--no-report", "--log", tmp_path / "run", *flags)
    assert code == 0, err
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


def test_training_batches_do_not_depend_on_the_cache(view, tmp_path):
    def batches(mode, workers):
        pixels = open_pixels(view, 20, mode, workers, folder=tmp_path)
        domain = Domain(view, torch.device("cpu"), pixels, Augment(16, seed=3), show_labels=True)
        return list(domain.train_batches(Steps(lambda step: (np.arange(4) * 5 + step) % len(view), 2, 5)))

    first = batches("off", 0)
    for mode, workers in (("off", 2), ("ram", 0), ("disk", 2)):
        for ours, theirs in zip(batches(mode, workers), first):
            assert torch.equal(ours.x, theirs.x) and torch.equal(ours.y, theirs.y)


def test_the_file_is_used_again_and_belongs_to_its_content(view, image_root, tmp_path, monkeypatch):
    def key(view=view, resize=16):
        return cache.pixel_key(view, resize, tmp_path)

    on_disk(view, 16, tmp_path)
    assert len(files(tmp_path)) == 1
    first = key()
    assert key(resize=17) != first
    assert key(UniversalView(ImageFolder(image_root / "photo", loader=Image.open), SPLIT, "source")) != first
    assert key(Listed(view.paths[::-1])) != first
    monkeypatch.setattr(cache, "decode_all", lambda *args: pytest.fail("decoded again"))
    on_disk(view, 16, tmp_path)
    os.utime(view.path(0))  # touched
    on_disk(view, 16, tmp_path)
    shutil.copytree(image_root, tmp_path / "elsewhere")
    on_disk(UniversalView(ImageFolder(tmp_path / "elsewhere" / "photo"), SPLIT, "source"), 16, tmp_path)


def test_an_edit_that_keeps_size_and_time_is_seen(view, tmp_path):
    first, facts, path = cache.pixel_key(view, 16, tmp_path), os.stat(view.path(0)), Path(view.path(0))
    content = path.read_bytes()
    time.sleep(0.05)  # the file system's clock ticks slowly
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    assert cache.pixel_key(view, 16, tmp_path) != first


def test_a_pipe_among_the_images_is_not_waited_for(view, tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UserError, match="pipe.jpg"):
        on_disk(Listed([*view.paths, str(tmp_path / "pipe.jpg")]), 16, tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_files_that_stay_as_they_are_are_read_once(view, tmp_path, monkeypatch):
    first = cache.pixel_key(view, 16, tmp_path, threads=2)
    monkeypatch.setattr(cache, "_content", lambda path: pytest.fail("read again"))
    assert cache.pixel_key(view, 16, tmp_path) == first
    monkeypatch.undo()
    (note,) = (path for path in (tmp_path / "contents").iterdir() if path.suffix != ".lock")
    note.write_text("damaged")
    assert cache.pixel_key(view, 16, tmp_path) == first


@pytest.fixture
def read_only(monkeypatch):
    """``read_only(folder)``: as if its disk could only be read, for root too."""

    def refuse_below(folder):
        for module in [m for name, m in sys.modules.items() if name.startswith("tllib_ext.")]:
            for name in ("file_lock", "write_text", "write_cached"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, refusing(getattr(module, name), Path(folder)))

    def refusing(function, folder):
        def call(path, *args, **kwargs):
            if folder in Path(path).parents:
                raise OSError(errno.EROFS, "Read-only file system", str(path))
            return function(path, *args, **kwargs)

        return call

    return refuse_below


@pytest.mark.parametrize("touched", [False, True])
def test_a_complete_cache_of_pixels_may_be_read_only(view, tmp_path, read_only, touched):
    first = on_disk(view, 16, tmp_path)._store.clone()
    read_only(tmp_path)
    if touched:  # the digest of the contents is computed again and cannot be stored
        os.utime(view.path(0))
    assert torch.equal(on_disk(view, 16, tmp_path)._store, first)
    with pytest.raises(OSError, match="Read-only"):
        on_disk(view, 17, tmp_path)


def test_a_complete_cache_of_features_may_be_read_only(run_example, image_root, tmp_path, read_only):
    words = [image_root, "-s", "photo", "-t", "sketch", *SMALL, "--steps", 2, "--freeze-backbone", "-j", 0]
    assert run_example("noisy_unida", *words, "--no-report", "--log", "first")[0] == 0
    read_only(tmp_path / "cache")
    code, _, err = run_example("noisy_unida", *words, "--no-report", "--log", "second")
    assert code == 0, err


def test_nobody_writes_to_the_file_through_the_array(view, tmp_path):
    on_disk(view, 16, tmp_path)._store.zero_()
    assert on_disk(view, 16, tmp_path)._store.any()


def test_any_damaged_header_is_an_absent_cache(tmp_path):
    rng = np.random.default_rng(0)
    cache.write_cached(tmp_path, "key", np.ones((3, 4), np.float32))
    (file,) = tmp_path.glob("*.npy")
    whole = file.read_bytes()
    for _ in range(300):
        content = bytearray(whole)
        for place in rng.integers(0, 128, rng.choice([1, 2, 8])):
            content[place] = rng.integers(256)
        file.write_bytes(content)
        cache.read_cached(tmp_path, "key")  # an array or None, no exception


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b"", lambda b: b"rubbish" + b[7:]])
def test_a_damaged_file_is_built_anew(view, tmp_path, damage):
    good = on_disk(view, 16, tmp_path)._store.clone()
    (file,) = tmp_path.glob("*.npy")
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(on_disk(view, 16, tmp_path)._store, good)


@pytest.mark.parametrize("loader", [load_image, lambda path: Image.open(path).convert("RGB")])
@pytest.mark.parametrize("mode", ["off", "ram", "disk"])
def test_a_bad_image_is_named_and_leaves_no_file(image_root, tmp_path, loader, mode):
    bad = tmp_path / "domain" / "red" / "broken.jpg"
    bad.parent.mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (8, 8)).save(bad.with_name(f"{i}.png"))
    bad.write_bytes(b"\xff\xd8\xff\xe0 this is no photograph")
    some, folder = Listed(sorted(map(str, bad.parent.iterdir())), loader), tmp_path / "cache"
    with pytest.raises(UserError, match="broken.jpg"):
        list(open_pixels(some, 8, mode, workers=2, folder=folder).stream([np.arange(4)]))
    assert files(folder) == []


def test_a_full_disk_is_an_error_that_names_the_file(view, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left.*\.npy"):
        on_disk(view, 16, tmp_path)
    assert files(tmp_path) == []


class Slow(Listed):
    """Images that take a while; writes a letter for each one loaded, in any process."""

    def __init__(self, paths, log, pause):
        super().__init__(paths, self.load)
        self.log, self.pause = log, pause

    def load(self, path):
        with open(self.log, "a") as stream:
            stream.write("x")
        time.sleep(self.pause)
        return load_image(path)


def build(view, folder):
    on_disk(view, 16, folder)


def test_the_second_builder_waits_and_uses_what_the_first_built(view, tmp_path):
    slow, log = Slow(view.paths, tmp_path / "log", 0.02), tmp_path / "log"
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=build, args=(slow, tmp_path / "cache")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(30)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(log.read_text()) == len(view)
    assert len(files(tmp_path / "cache")) == 1


def test_a_builder_that_was_killed_leaves_no_cache_and_no_lock(view, tmp_path):
    folder, log = tmp_path / "cache", tmp_path / "log"
    slow = Slow(view.paths, log, 0.2)
    process = multiprocessing.get_context("fork").Process(target=build, args=(slow, folder))
    process.start()
    deadline = time.monotonic() + 20
    while not (log.exists() and len(log.read_text()) > 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert [name for name in files(folder) if name.endswith(".npy")] == []
    slow.pause = 0
    assert torch.equal(on_disk(slow, 16, folder)._store, StoredPixels(view, 16)._store)
    assert len(files(folder)) == 1  # the dead builder's draft is gone


def test_interrupted_threads_stop(view, tmp_path):
    """An error in one thread ends the others soon: what is queued is not decoded any more."""
    started = []

    class Failing(Slow):
        def load(self, path):
            started.append(path)
            raise UserError(f"unreadable image {path}")

    with pytest.raises(UserError):
        StoredPixels(Failing(view.paths, tmp_path / "log", 0), 16, workers=2)
    assert len(started) <= 2


def test_training_gives_the_same_model_whatever_the_cache(run_example, image_root, tmp_path):
    models = set()
    for mode in ("off", "ram", "disk"):
        words = [image_root, "-d", "folder", "-s", "photo", "-t", "sketch", *SMALL, "--steps", 3,
                 "--noise", "pair", "--target-aug", "train", "-j", 1, "--cache", mode, "--no-report",
                 "--log", tmp_path / mode]  # fmt: skip
        code, _, err = run_example("noisy_unida", *words)
        assert code == 0, err
        models.add((tmp_path / mode / "model.safetensors").read_bytes())
        assert bool(list((tmp_path / "cache").glob("pixels/*.npy"))) == (mode == "disk")
    assert len(models) == 1
