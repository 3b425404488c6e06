"""Preset ``code`` of divergence against the authors' own ``train()``: 130 iterations, 29 of them after the warm-up.

Needs a checkout of https://github.com/YU1ut/Divergence-Optimization in ``TLLIB_EXT_REAL_DIVOPT``. Of its script, the functions
are taken and not the statements around them, which read arguments, images and pretrained weights.
"""

import ast
import copy
import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from plain_loop import load_loop, run_loop
from torch import nn
from torch.autograd import Variable

from tllib_ext import compat
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

CODE = Path(os.environ.get("TLLIB_EXT_REAL_DIVOPT", ""))
HERE = (CODE / "utils" / "loss.py").is_file()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HERE, reason="no checkout of the authors' code; see TLLIB_EXT_REAL_DIVOPT"),
    pytest.mark.filterwarnings("ignore"),  # their calls are deprecated today
]
#: Office-31's label sets and thresholds, of configs/office-train-config_opda.yaml
SPLIT = LabelSplit([f"s{k}" for k in range(10)], [f"p{k}" for k in range(10)], ["u"])
STEPS, BATCH, WIDTH, RATE, THRESHOLD, MARGIN = 130, 16, 12, 0.2, 1.49, 0.5


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Net(nn.Sequential):
    """A small backbone with batch norm."""

    out_features = 16

    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))


def batches(spread):
    """Classes with their own centres, so that some target samples become known and others do not."""
    g = torch.Generator().manual_seed(3)
    centres = spread * torch.randn(SPLIT.num_source, WIDTH, generator=g)
    for _ in range(STEPS):
        y, t = (torch.randint(SPLIT.num_source, (BATCH,), generator=g) for _ in range(2))
        noisy = torch.where(torch.rand(BATCH, generator=g) < RATE, (y + 1) % SPLIT.num_source, y)
        yield (
            centres[y] + torch.randn(BATCH, WIDTH, generator=g),
            noisy,
            centres[t] + 1.5 * torch.randn(BATCH, WIDTH, generator=g),
        )


def module(name):
    spec = importlib.util.spec_from_file_location(f"authors_{Path(name).stem}", CODE / name)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def theirs(method, data, monkeypatch):
    """Their loop with our initial weights; returns G, C1, C2."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(nn.Module, "cuda", lambda self: self)
    compat.torchvision()  # which their file imports
    head = module("models/basenet.py").ResClassifier_MME
    net, heads = copy.deepcopy(method.backbone), [head(SPLIT.num_source, 16, 0.05) for _ in range(2)]
    for own, other in zip(method.heads.heads, heads):
        other.fc.weight.data.copy_(own.weight)
    sgd = {"momentum": 0.9, "weight_decay": 0.0005, "nesterov": True}
    opt_g = torch.optim.SGD([{"params": [p], "lr": 0.1, "weight_decay": 0.0005} for p in net.parameters()], **sgd)
    opt_c = [torch.optim.SGD(list(each.parameters()), lr=1.0, **sgd) for each in heads]
    train = {"min_step": STEPS - 1, "lr": 0.01, "eta": 0.05, "thr": THRESHOLD, "margin": MARGIN, "log_interval": 10**9}
    index = torch.arange(BATCH)
    scope = {
        "torch": torch, "nn": nn, "F": F, "Variable": Variable, "print": lambda *words: None, "batch_size": BATCH,
        "conf": SimpleNamespace(train=SimpleNamespace(**train)), "args": SimpleNamespace(percent=RATE),
        "source_loader": [(s, y) for s, y, _ in data],
        "target_loader": [(t, torch.zeros(BATCH).long(), index) for _, _, t in data],
        "opt_g": opt_g, "opt_c1": opt_c[0], "opt_c2": opt_c[1], "param_lr_f1": [1.0], "param_lr_f2": [1.0],
        "param_lr_g": [0.1] * len(opt_g.param_groups), "G": nn.DataParallel(net),
        "C1": nn.DataParallel(heads[0]), "C2": nn.DataParallel(heads[1]), "dataset_test": None, "filename": None,
        "n_share": 10, "num_class": SPLIT.num_source, **vars(module("utils/loss.py")), **vars(module("utils/lr_schedule.py")),
    }  # fmt: skip
    tree = ast.parse((CODE / "train.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name != "set_seed"]
    exec(compile(tree, "train.py", "exec"), scope)
    scope["test"] = lambda *words: None  # evaluation changes nothing
    scope["train"]()
    return net, heads


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_the_authors_loop(spread, monkeypatch):
    cls, data = METHODS.get("divergence"), list(batches(spread))
    torch.manual_seed(0)
    method = cls(Net(), SPLIT, cls.configure("code", {}))
    net, heads = theirs(method, data, monkeypatch)
    before = copy.deepcopy(method.state_dict())
    method.prepare(Context(steps=STEPS, rate=RATE))
    method.train()
    play = SGDPlayers(method.players(), lr=0.01, total_steps=STEPS, schedule=method.lr_factor)
    index, known = torch.arange(BATCH), []
    for step, (s, y, t) in enumerate(data):
        play.begin(step)
        values = method.update(Batch(s, y, index), Batch(t, None, index), step, play)
        known.append(float(values.get("known", 0.0)))
    expected = {f"backbone.{key}": value for key, value in net.state_dict().items()}
    expected.update({f"heads.heads.{k}.weight": head.fc.weight.data for k, head in enumerate(heads)})
    ours = method.state_dict()
    assert set(expected) == set(ours)
    moved = max(float((ours[key] - before[key]).abs().max()) for key, _ in method.named_parameters())
    apart = max(float((ours[key] - value).abs().max()) for key, value in expected.items())
    share = sum(known[101:]) / len(known[101:])
    print(f"spread {spread}: moved {moved:.2e}, apart {apart:.2e}, known after the warm-up {share:.2f}")
    assert apart < 1e-11 < 1e-2 < moved


def test_the_tllib_example_is_the_authors_loop(monkeypatch):
    cls, data = METHODS.get("divergence"), list(batches(3.0))
    torch.manual_seed(0)
    method = cls(Net(), SPLIT, cls.configure("code", {}))
    net, heads = theirs(method, data, monkeypatch)
    ours = run_loop(load_loop(monkeypatch), method, data, "code", RATE)
    expected = {f"backbone.{key}": value for key, value in net.state_dict().items()}
    expected.update({f"heads.heads.{k}.weight": head.fc.weight.data for k, head in enumerate(heads)})
    assert set(ours) == set(expected)
    apart = max(float((ours[key] - value).abs().max()) for key, value in expected.items())
    print(f"examples/plain_tllib_loop.py: apart {apart:.2e}")
    assert apart < 1e-11
