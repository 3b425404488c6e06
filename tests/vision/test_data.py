"""Splits, readers, views, samplers and augmentation."""

import io
import os
import zipfile

import numpy as np
import pytest
import torch
from conftest import SHARED
from hypothesis import given, settings
from hypothesis import strategies as st

from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.vision.datasets.benchmarks import BENCHMARKS
from tllib_ext.vision.datasets.builder import find_domain
from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageList
from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.transforms import MEAN, STD, Augment

OFFICE = SHARED / "data" / "office31"


@pytest.mark.parametrize("name, sizes", [("Office31", "10/10/11"), ("OfficeHome", "10/5/50"), ("VisDA2017", "6/3/3")])
def test_presets_cover_the_data_set_by_name(name, sizes):
    split = PRESETS[name]
    assert str(split) == sizes and split.scenario == "universal"
    assert set(split.source_classes + split.target_private) == set(BENCHMARKS[name].classes)


@pytest.mark.parametrize("domain", ["Art", "Clipart", "Product", "Real", "amazon", "dslr", "webcam"])
@pytest.mark.parametrize("role", ["source", "target"])
def test_presets_number_classes_as_the_authors_lists_do(domain, role):
    file = SHARED / "data" / "reference_lists" / f"{role}_{domain}_opda.txt"
    if not file.exists():
        pytest.skip("the authors' image lists are not here")
    split = PRESETS["Office31" if domain.islower() else "OfficeHome"]
    index = split.source_index if role == "source" else split.target_index
    for line in file.read_text().splitlines():
        path, label = line.rsplit(" ", 1)
        assert index(path.split("/")[-2]) == int(label), line


@pytest.mark.parametrize("domain, source, target", [("amazon", 1808, 1967), ("dslr", 323, 332), ("webcam", 526, 564)])
def test_office31_counts(domain, source, target):
    if not OFFICE.exists():
        pytest.skip("Office-31 is not here")
    other = "dslr" if domain != "dslr" else "webcam"
    data = open_data(str(OFFICE), source=domain, target=other)
    assert data.name == "Office31"
    assert len(UniversalView(data.source, data.split, "source")) == source
    assert len(UniversalView(data.source, data.split, "target")) == target


def test_scenarios_and_indices():
    names = ["a", "b", "c", "d"]
    expected = {"4/0/0": "closed", "2/2/0": "partial", "2/0/2": "open", "2/1/1": "universal"}
    assert {text: LabelSplit.parse(text, names).scenario for text in expected} == expected
    split = LabelSplit.parse("2/1/1", names)
    assert [split.source_index(n) for n in names] == [0, 1, 2, None]
    assert [split.target_index(n) for n in names] == [0, 1, None, 3]
    assert LabelSplit(**split.to_dict()) == split


@pytest.mark.parametrize("parts", [(["a", "b"], ["b"], []), (["a"], [], []), (["a", "unknown"], [], []), (["a", ""], [], [])])
def test_impossible_splits(parts):
    with pytest.raises(UserError):
        LabelSplit(*parts)


@pytest.mark.parametrize(
    "text, found", [("A", "Art"), ("art", "Art"), ("Pr", "Product"), ("r", "Real_World"), ("RW", "Real_World")]
)
def test_domains_by_letter_name_and_beginning(text, found):
    known = BENCHMARKS["OfficeHome"]
    assert find_domain(text, list(known.lists), known.letters) == found


def test_ambiguous_and_unknown_domains():
    with pytest.raises(UserError, match="ambiguous: art, arts"):
        find_domain("ar", ["arts", "art", "web"])
    assert find_domain("art", ["arts", "art"]) == "art"
    with pytest.raises(UserError, match="did you mean 'amazon'"):
        find_domain("amzon", ["amazon", "dslr"])


def write_layout(root, name):
    known = BENCHMARKS[name]
    (root / "image_list").mkdir(parents=True)
    for domain, stem in known.lists.items():
        lines = [f"{domain}/{c}/{i} x.jpg {k}" for k, c in enumerate(known.classes) for i in range(2)]
        (root / "image_list" / f"{stem}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_layouts_are_recognised_and_read_by_class_name(tmp_path, name):
    write_layout(tmp_path, name)
    source, target = list(BENCHMARKS[name].letters)[:2]
    data = open_data(str(tmp_path), source=source, target=target)
    assert data.name == name and data.split == PRESETS[name]
    view = UniversalView(data.target, data.split, "target")
    for path, label in view.samples:
        assert data.split.target_index(path.split("/")[-2]) == label
        assert path.endswith(" x.jpg")


def test_folders_say_what_is_shared(image_root):
    data = open_data(str(image_root), source="photo", target="sketch")
    assert data.split == LabelSplit(["green", "red"], ["blue"], ["grey"])
    unlabelled = open_data(str(image_root), source="photo", target="new")
    assert unlabelled.split == LabelSplit(["blue", "green", "red"])
    assert UniversalView(unlabelled.target, unlabelled.split, "target").targets is None
    with pytest.raises(UserError, match="no class folders"):
        open_data(str(image_root), source="new", target="photo")


def test_features_and_their_classes(feature_root):
    data = open_data(str(feature_root), source="al", target="BETA", split="2/2/2")
    view = UniversalView(data.target, data.split, "target")
    assert view.features.shape == (48, 8) and np.bincount(view.targets).tolist() == [12, 12, 0, 0, 24]
    assert view[0][1] == 0 and view.path(0) == "beta/ant/0.png"


@pytest.mark.parametrize(
    "arrays, message",
    [({"features": np.zeros((2, 3))}, "no classes"), ({"features": np.zeros(3), "classes": ["a"]}, "shape"),
     ({"features": np.full((2, 3), np.nan), "classes": ["a"]}, "NaN"),
     ({"features": np.zeros((2, 3)), "classes": ["a"], "labels": [0, 1]}, "labels must be"),
     ({"features": np.zeros((2, 3)), "classes": ["a"], "labels": np.array([{}, {}])}, "cannot read"),
     ({"features": np.zeros((2, 3)), "classes": ["a"], "labels": [0, 0], "paths": ["x"]}, "paths for 2")],
)  # fmt: skip
def test_bad_feature_files(tmp_path, arrays, message):
    np.savez(tmp_path / "d.npz", **{key: np.asarray(value) for key, value in arrays.items()})
    with pytest.raises(UserError, match=message):
        FeatureList(tmp_path / "d.npz")


@pytest.mark.parametrize(
    "line, message",
    [("a.jpg", "expected 'path label'"), ("a.jpg x", "expected"), ("a.jpg -1", "expected"), ("a.jpg 7", "label 7"),
     ("/etc/passwd 0", "outside"), ("../a.jpg 0", "outside")],
)  # fmt: skip
def test_bad_list_lines_name_the_line(tmp_path, line, message):
    (tmp_path / "l.txt").write_text(f"ok.jpg 0\n{line}\n")
    with pytest.raises(UserError, match=message) as caught:
        ImageList(tmp_path, ["a", "b"], tmp_path / "l.txt")
    assert "l.txt:2" in str(caught.value)


def test_same_samples_as_torchvisions_folder(image_root):
    from tllib_ext import compat

    theirs = compat.torchvision().datasets.ImageFolder(str(image_root / "photo"))
    split = LabelSplit(["red"], ["blue"], [])
    view = UniversalView(theirs, split, "source")
    assert [label for _, label in view.samples] == [1] * 8 + [0] * 8
    assert view[0][0].size == (24, 20)


def test_source_classes_must_have_images(feature_root):
    data = open_data(str(feature_root), source="alpha", target="beta")
    with pytest.raises(UserError, match="no source image of: gnu"):
        UniversalView(data.source, LabelSplit(["ant", "gnu"]), "source")


def test_balanced_batches_are_balanced_and_by_step():
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    batches = BalancedBatches(labels, 30, seed=3)
    drawn = labels[np.concatenate([batches(step) for step in range(200)])]
    assert np.abs(np.bincount(drawn) / len(drawn) - 1 / 3).max() < 0.02
    assert np.array_equal(batches(7), BalancedBatches(labels, 30, seed=3)(7))
    assert not np.array_equal(batches(7), BalancedBatches(labels, 30, seed=4)(7))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 5))
def test_shuffled_batches_use_everything_before_repeating(size, batch, seed):
    if batch > size:
        with pytest.raises(UserError):
            ShuffledBatches(size, batch, seed)
        return
    batches, per_epoch = ShuffledBatches(size, batch, seed), size // batch
    for epoch in range(2):
        seen = np.concatenate([batches(epoch * per_epoch + i) for i in range(per_epoch)])
        assert len(set(seen.tolist())) == per_epoch * batch
    assert np.array_equal(batches(0), ShuffledBatches(size, batch, seed)(0))


def test_augmentation_against_slices():
    rows = torch.arange(5 * 9 * 9 * 3, dtype=torch.int64).remainder(256).to(torch.uint8).view(5, 9, 9, 3)
    augment, index = Augment(crop=6, seed=1), np.array([4, 1, 1, 8, 0])
    top, left, flip = augment.choices(3, 11, index)
    out = augment(rows, 11, index)
    assert out.shape == (5, 3, 6, 6) and out.is_contiguous(memory_format=torch.channels_last)
    for i in range(5):
        patch = rows[i, top[i] : top[i] + 6, left[i] : left[i] + 6].permute(2, 0, 1).float() / 255
        patch = patch.flip(2) if flip[i] else patch
        expected = (patch - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        torch.testing.assert_close(out[i], expected, rtol=1e-5, atol=1e-5)
    assert (top[1], left[1], flip[1]) == (top[2], left[2], flip[2])  # a function of (seed, step, index)


def test_augmentation_choices_are_uniform():
    augment = Augment(crop=224, seed=0)
    chosen = [augment.choices(32, step, np.arange(100)) for step in range(50)]
    top, left, flip = (np.concatenate([c[i] for c in chosen]) for i in range(3))
    for values in (top, left):
        assert set(values) == set(range(33)) and abs(values.mean() - 16) < 0.5
    assert abs(flip.mean() - 0.5) < 0.03 and abs(np.corrcoef(top, left)[0, 1]) < 0.05
    assert not Augment(crop=224, flip=False).choices(32, 0, np.arange(100))[2].any()


def test_cutting_image_by_image_is_gathering_all_at_once():
    augment = Augment(crop=24, seed=3)
    rows = torch.randint(0, 256, (9, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    choices = augment.choices(8, 5, np.arange(9))
    assert choices[2].any() and not choices[2].all()
    assert torch.equal(augment._cut(rows, *choices), augment._gather(rows, *choices).float())


@pytest.mark.parametrize("text, sizes", [("Office31:closed", "31/0/0"), ("Office31:partial", "10/21/0"),
    ("Office31:open", "10/0/11"), ("OfficeHome:open", "25/0/40"), ("OfficeHome:open_15", "15/0/50"),
    ("VisDA2017:open", "6/0/6"), ("VisDA2017:partial", "6/6/0"), ("OfficeHome:universal", "10/5/50")])  # fmt: skip
def test_scenarios_by_name(text, sizes):
    name, _, scenario = text.partition(":")
    preset = PRESETS[name]
    split = LabelSplit.parse(text, [])
    assert str(split) == sizes and split.scenario == scenario.partition("_")[0]
    # The unknown classes of every scenario are the last ones, also where the source-private ones are left out.
    classes = preset.source_classes + preset.target_private
    assert not split.target_private or split.target_private[-1] == classes[-1]
    assert LabelSplit.parse(scenario, sorted(classes)) == split
    if scenario == "universal":
        assert split == preset


def test_scenarios_of_domainnet_are_in_the_order_of_its_lists():
    classes = [f"class_{i:03}" for i in range(342)] + ["The_Wall", "a-shirt", "Ash_tray"]
    split = LabelSplit.parse("DomainNet:universal", classes[::-1])
    assert str(split) == "150/50/145" and split.shared[:3] == ("a-shirt", "Ash_tray", "class_000")
    assert split.target_private[-1] == "The_Wall" and LabelSplit.parse("universal", classes) == split
    with pytest.raises(UserError, match="of 345 classes, the data has 2"):
        LabelSplit.parse("DomainNet:open", ["a", "b"])
    with pytest.raises(UserError, match="Office31:open"):
        LabelSplit.parse("Office31:opne", classes)


def write_npz(tmp_path, **arrays):
    features = np.zeros((4, 3), np.float32)
    np.savez(tmp_path / "d.npz", **{"features": features, "labels": np.arange(4) % 2, "classes": np.array(["a", "b"]), **arrays})
    return tmp_path / "d.npz"


@pytest.mark.parametrize("key, names", [("paths", ["0", "1", "\ud800", "3"]), ("classes", ["a", "b\udfff"])])
def test_half_a_character_is_refused_at_reading(tmp_path, key, names):
    with pytest.raises(UserError, match=f"{key} hold .*not valid Unicode"):
        FeatureList(write_npz(tmp_path, **{key: np.array(names)}))
    names = ["0", "1", os.fsdecode(b"\xff.png"), "3"]  # bytes of a file name stay
    assert [path for path, _ in FeatureList(write_npz(tmp_path, paths=np.array(names))).samples] == names


def test_a_small_file_cannot_claim_many_classes(tmp_path):
    file = write_npz(tmp_path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U0", "fortran_order": False, "shape": (10**12,)})
    arrays = {name: value for name, value in np.load(file).items() if name in ("features", "labels")}
    np.savez(file, **arrays)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("classes.npy", header.getvalue())
    with pytest.raises(UserError, match="1000000000000 classes, expected at most|cannot read features"):
        FeatureList(file)


def test_features_from_a_pipe_do_not_block(tmp_path):
    os.mkfifo(tmp_path / "d.npz")
    with pytest.raises(UserError, match="not a regular file"):
        FeatureList(tmp_path / "d.npz")
