"""Fuzzing of every reader of user files: texts, bytes, and valid files with a few bytes changed."""

import io
import json

import numpy as np
from fuzz_models import good_model, hostile_models, read_model
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tllib_ext.cli.yaml_file import read_yaml
from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import load_split, read_predictions
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import settings_of
from tllib_ext.vision.datasets.imagelist import FeatureList, ImageList
from tllib_ext.vision.datasets.noises import read_transition

SPLIT = LabelSplit(["mug", "=pen"], ["cup"], ["jar"])


def _npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


GOOD_NPZ = _npz(features=np.ones((4, 3), np.float32), labels=np.array([0, 1, 0, 1]), classes=np.array(["mug", "cup"]))
GOOD_LIST = b"a/1.jpg 0\nb c/2.jpg 1\n\n'\".png 2\n"
GOOD_YAML = b"noise: pair\nrate: 0.2\nhp: {eta: 0.1}\nsteps: 5\nscratch: true\n"
GOOD_SPLIT = json.dumps({"split": {"shared": ["mug"], "source_private": ["cup"], "target_private": ["jar"]}}).encode()
GOOD_CSV = b"index,path,label,predicted,score,threshold,top1,p1,top2,p2,top3,p3\n" \
           b"0,a.png,mug,unknown,0.5,0.4,mug,0.5,'=pen,0.3,cup,0.2\n1,\"b\nc\",,'=pen,-1e3,,'=pen,1,mug,0,cup,0\n"  # fmt: skip


def damaged(good, words):
    """A valid file with a few bytes or words replaced, deleted, repeated or inserted."""

    def apply(edits):
        data = bytearray(good)
        for kind, where, what in edits:
            at = where % (len(data) + 1)
            if kind == 0:
                data[at : at + len(what)] = what
            elif kind == 1:
                del data[at : at + 1 + len(what)]
            elif kind == 2:
                data[at:at] = what
            else:
                data[at:at] = data[at : at + 20] * (1 + len(what))
        return bytes(data)

    what = st.one_of(st.sampled_from([word.encode() for word in words] or [b"\0"]), st.binary(min_size=1, max_size=4))
    edit = st.tuples(st.integers(0, 3), st.integers(0, len(good)), what)
    return st.lists(edit, min_size=1, max_size=4).map(apply)


def lines(words):
    """Lines of words that the reader knows, and of arbitrary text."""
    word = st.one_of(st.sampled_from(words), st.text(max_size=6))
    line = st.lists(word, max_size=6).map("".join)
    return st.lists(line, max_size=6).map(lambda rows: "\n".join(rows).encode("utf-8", "surrogatepass"))


def arrays():
    """``.npz`` archives with the expected names and arrays of any type and shape."""
    dtype = st.sampled_from(["f4", "f8", "i8", "u1", "u8", "?", "c8", "U3", "S2", "M8[s]", "f2"])
    shape = st.lists(st.integers(0, 4), max_size=3)
    array = st.tuples(shape, dtype, st.integers(-2, 3)).map(lambda a: np.full(a[0], a[2]).astype(a[1]))
    names = st.sampled_from(["features", "labels", "classes", "paths", "more"])
    return st.dictionaries(names, array, max_size=5).map(lambda parts: _npz(**parts))


def matrices():
    """``.npy`` files of any type and shape."""
    shape = st.lists(st.integers(0, 4), max_size=3)
    dtype = st.sampled_from(["f4", "f8", "i8", "?", "c8", "U3", "V3"])
    return st.tuples(shape, dtype).map(lambda a: _npy(np.zeros(a[0]).astype(a[1]) if a[1] != "V3" else np.zeros(a[0], "V3")))


SETTINGS = settings_of(RunConfig)
LIST_WORDS = ["a.jpg", " ", "0", "1", "9", "../", "/", "-1", "\0", "\r", "\n", "١"]
YAML_WORDS = ["noise", "rate", "hp", "steps", ": ", "- ", "&a ", "*a", "<<", "{", "}", "[", "]", "!!python/object:os.system ",
              "!!binary ", "!!set ", "? ", "| ", "1e999", "0x", "1:2", "2020-01-01", "~", "\"", "'", "#", "  ", "\t", "---",
              "%YAML 1.1", ",", "pair", "\n"]  # fmt: skip
CSV_WORDS = [*GOOD_CSV.decode().split("\n")[0].split(","), ",", "\n", "mug",
             "'=pen", "unknown", "1", "nan", "inf", '"', "-0", "\r"]  # fmt: skip
CELLS = ["0.5", ",", "0", "1", "nan", "1e999", '"', "-1", "\n"]
JSON_WORDS = ['{"split": ', '"shared": ', "[", "]", "{", "}", '"a"', ",", "1", "null", "NaN"]
#: name -> file name, a valid file, generated files, words for damaging it, the reader
READERS = {
    "image list": ("list.txt", GOOD_LIST, lines(LIST_WORDS), LIST_WORDS,
                   lambda file: ImageList(str(file.parent), ["x", "y", "z"], file)),
    "features .npz": ("f.npz", GOOD_NPZ, arrays(), [], FeatureList),
    "configuration .yaml": ("c.yaml", GOOD_YAML, lines(YAML_WORDS), YAML_WORDS, lambda file: read_yaml(str(file), SETTINGS)),
    "predictions .csv": ("p.csv", GOOD_CSV, lines(CSV_WORDS), CSV_WORDS, lambda file: read_predictions(file, SPLIT)),
    "transition matrix .csv": ("q.csv", b"0.5,0.5\n0,1\n", lines(CELLS), CELLS, lambda file: read_transition(file, 2)),
    "transition matrix .npy": ("q.npy", _npy(np.eye(2)), matrices(), [], lambda file: read_transition(file, 2)),
    "label sets .json": ("config.json", GOOD_SPLIT, lines(JSON_WORDS), JSON_WORDS, load_split),
    "model .safetensors": ("model.safetensors", good_model()[0], hostile_models(), [], read_model),
}  # fmt: skip


def fuzz(name, cases, number, folder):
    """Read ``cases`` files with one reader, seed ``number``; returns how many were tried and how many refused."""
    stem, good, generated, words, read = READERS[name]
    count = {"tried": 0, "refused": 0}

    @seed(number)
    @settings(max_examples=cases, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.one_of(damaged(good, words), generated, st.binary(max_size=80)))
    def run(data):
        (folder / stem).write_bytes(data)
        count["tried"] += 1
        try:
            read(folder / stem)
        except UserError as error:
            count["refused"] += 1
            assert str(error)

    run()
    return count["tried"], count["refused"]
