"""``noisy()`` and ``universal()``: the labels of our views in classes of tllib's form."""

import copy
import pickle

import numpy as np
import pytest
import standin
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.tllib import noisy, universal
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.universal import UniversalView

checkout, office31, tllib = standin.checkout, standin.office31, standin.tllib
SPLIT = PRESETS["Office31"]


@pytest.fixture
def Office31(tllib):
    from tllib.vision.datasets import Office31

    return Office31


class Letters:
    """A list in memory, of 5 classes in a random order."""

    loader = staticmethod(Image.open)

    def __init__(self, size=60, seed=0):
        labels = np.random.default_rng(seed).permutation(np.arange(size) % 5).tolist()
        self.samples, self.classes = [(f"{i}.png", label) for i, label in enumerate(labels)], list("abcde")


@pytest.mark.parametrize("kind, rate", [("pair", 0.2), ("symmetric", 0.45), ("random_partner", 0.3), ("none", 0.0)])
def test_labels_are_those_of_the_views(Office31, office31, kind, rate):
    dataset = noisy(universal(Office31, "source"), kind, rate, seed=3)(root=str(office31), task="A")
    view = NoisyLabels(UniversalView(Office31(root=str(office31), task="A"), SPLIT, "source"), kind, rate, 3)
    assert dataset.samples == view.samples
    assert dataset.targets == view.targets.tolist() and dataset.clean_targets.tolist() == view.clean_targets.tolist()
    assert dataset.is_flipped.tolist() == view.is_flipped.tolist() and dataset.is_flipped.any() == (rate > 0)


def test_the_target_has_shared_classes_and_unknown(Office31, office31):
    dataset = universal(Office31, "target")(root=str(office31), task="D")
    view = UniversalView(Office31(root=str(office31), task="D"), SPLIT, "target")
    assert dataset.samples == view.samples and dataset.classes == [*SPLIT.source_classes, "unknown"]
    assert {label for _, label in dataset.samples} == {*range(10), 20}
    assert dataset.label_split == SPLIT


def test_a_class_keeps_what_scripts_read(Office31, office31):
    cls = noisy(universal(Office31, "source"))
    dataset = cls(str(office31), "W")  # positional arguments too
    assert issubclass(cls, Office31) and cls.__name__ == "NoisyUniversalOffice31Source"
    assert dataset.num_classes == 20 and dataset.classes == list(SPLIT.source_classes)
    assert dataset.class_to_idx == {name: k for k, name in enumerate(SPLIT.source_classes)}
    assert cls.domains() == ["A", "D", "W"] and cls.image_list is Office31.image_list
    image, label = dataset[5]
    assert image.size == (16, 16) and label == dataset.samples[5][1] == dataset.targets[5]


def test_the_order_of_the_factories_does_not_matter(Office31):
    assert universal(noisy(Office31, "pair", 0.3), "source") is noisy(universal(Office31, "source"), "pair", 0.3)
    assert noisy(Office31, rate=0.1) is not noisy(Office31, rate=0.2)


@given(size=st.integers(10, 80), seed=st.integers(0, 5), rate=st.floats(0, 0.6), split=st.sampled_from(["2/1/2", "3/2/0"]))
def test_noise_stays_among_the_source_classes_and_leaves_paths(size, seed, rate, split):
    clean = universal(Letters, "source", split)(size, seed)
    given = noisy(universal(Letters, "source", split), "symmetric", rate, seed)(size, seed)
    assert [path for path, _ in given.samples] == [path for path, _ in clean.samples]
    assert set(given.targets) <= set(range(len(clean.classes))) and given.classes == clean.classes
    assert given.clean_targets.tolist() == clean.targets
    assert (given.is_flipped == (np.array(given.targets) != np.array(clean.targets))).all()


def test_all_classes_without_a_split():
    dataset = noisy(Letters, "pair", 0.4, mode="exact")(50)
    assert dataset.classes == list("abcde") and dataset.is_flipped.sum() == 20
    wrong = dataset.is_flipped
    assert (np.array(dataset.targets)[wrong] == (dataset.clean_targets[wrong] + 1) % 5).all()


def test_the_sources_of_tllibs_own_factory(tllib, office31):
    from tllib.vision.datasets.openset import Office31, open_set

    made = noisy(open_set(Office31, Office31.CLASSES[:6]), "pair", 0.5)(root=str(office31), task="A")
    assert made.classes == [*Office31.CLASSES[:6], "unknown"] and set(made.targets) == set(range(6))
    twin = copy.copy(made)
    assert twin.samples is made.samples and type(twin) is type(made)
    with pytest.raises((pickle.PicklingError, AttributeError), match="OpenSetDataset|Office31|NoisyOpenSet"):
        pickle.dumps(made)  # as tllib's own classes of this kind
    target = noisy(open_set(Office31, Office31.CLASSES[:6], Office31.CLASSES[6:]))
    with pytest.raises(UserError, match="images of unknown classes: label noise belongs on the source"):
        target(root=str(office31), task="A")


def test_a_class_for_classifiers_with_an_output_for_unknown(Office31, office31):
    made = noisy(universal(Office31, "source", unknown_class=True))(root=str(office31), task="A")
    assert made.num_classes == 21 and made.classes[-1] == "unknown" and max(made.targets) == 19


@pytest.mark.parametrize("make", [lambda c: universal(c, "target"), lambda c: noisy(universal(c, "source")), noisy])
def test_classes_and_instances_pickle(Office31, office31, make):
    dataset = make(Office31)(root=str(office31), task="D")
    again = pickle.loads(pickle.dumps(dataset))
    assert type(again) is make(Office31) and again.samples == dataset.samples and again.classes == dataset.classes
    other = copy.copy(dataset)
    other.transform = str
    assert dataset.transform is None and other.samples is dataset.samples


def test_a_process_that_was_not_forked_reads_them(Office31, office31):
    dataset = noisy(universal(Office31, "source"))(
        root=str(office31), task="D", transform=compat.torchvision().transforms.ToTensor()
    )
    loader = DataLoader(dataset, 16, num_workers=1, multiprocessing_context="spawn")
    images, labels = next(iter(loader))
    assert images.shape == (16, 3, 16, 16) and labels.tolist() == dataset.targets[:16]


def test_torchvisions_folders(tmp_path):
    for name in "abcd":
        (tmp_path / name).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / name / "1.png")
    source = universal(compat.torchvision().datasets.ImageFolder, "source", LabelSplit(("b",), ("a",), ("d",)))(str(tmp_path))
    assert source.classes == ["b", "a"] and [label for _, label in source.samples] == [1, 0]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: noisy(noisy(Letters)), "has noisy labels already"),
        (lambda: universal(universal(Letters, "source", "2/1/2"), "target", "2/1/2"), "is a source already"),
        (lambda: noisy(universal(Letters, "target", "2/1/2")), "is a target: label noise belongs on the source"),
        (lambda: universal(noisy(Letters), "target", "2/1/2"), "label noise belongs on the source"),
        (lambda: universal(Letters, "both", "2/1/2"), "role 'both': expected source or target"),
        (lambda: universal(Letters, "source"), "no label split of Letters is known.*'10/10/11'"),
        (lambda: universal(Letters(), "source", "2/1/2"), "expected a data set class"),
        (lambda: noisy(type("Part", (noisy(Letters),), {})), r"apply noisy\(\) and universal\(\) last"),
        (lambda: noisy(Letters, "pare")(), "pare"),
        (lambda: noisy(Letters, rate=1.5)(), "rate 1.5"),
        (lambda: noisy(Letters, kind="pair")(), "has no option 'kind'"),
        (lambda: universal(Letters, "source", "9/9/9")(), "has 27 classes, the data has 5"),
        (lambda: universal(list, "source", "2/1/2")(), "list has no samples and no classes and no loader"),
    ],
)
def test_a_wrong_call_says_what_to_do(make, message):
    with pytest.raises(UserError, match=message):
        make()
