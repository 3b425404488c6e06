"""The plugin inside an ordinary tllib script: the same numbers as the method, and a run with the real tllib."""

import copy
from pathlib import Path

import pytest
import torch
from plain_loop import load_loop, run_loop
from test_compat import REAL, ROOT, python
from torch import nn

from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

OFFICE = Path(__file__).resolve().parents[3] / "shared" / "data" / "office31"
SCRIPT = ROOT / "examples" / "plain_tllib_loop.py"
SPLIT = LabelSplit([f"s{k}" for k in range(10)], [f"p{k}" for k in range(10)], ["u"])
BATCH, WIDTH, RATE = 16, 12, 0.2


def test_it_is_short_and_knows_only_losses_lists_and_evaluator():
    lines = SCRIPT.read_text().splitlines()
    imports = {line.split()[1] for line in lines if line.startswith("from tllib_ext.")}
    assert not [name for name in imports if name.startswith(("tllib_ext.training", "tllib_ext.cli", "tllib_ext.methods.d"))]
    assert len(lines) <= 150


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Net(nn.Sequential):
    """A small backbone with batch norm."""

    out_features = 16

    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))


def batches(steps):
    """Classes with their own centres: some target samples become known and others do not."""
    g = torch.Generator().manual_seed(3)
    centres = 3 * torch.randn(SPLIT.num_source, WIDTH, generator=g)
    for _ in range(steps):
        y, t = (torch.randint(SPLIT.num_source, (BATCH,), generator=g) for _ in range(2))
        noisy = torch.where(torch.rand(BATCH, generator=g) < RATE, (y + 1) % SPLIT.num_source, y)
        yield (centres[y] + torch.randn(BATCH, WIDTH, generator=g), noisy,
               centres[t] + 1.5 * torch.randn(BATCH, WIDTH, generator=g))  # fmt: skip


@pytest.mark.parametrize("preset, steps, epochs", [("code", 111, 1), ("default", 10, 2)])
def test_its_steps_are_those_of_the_method(preset, steps, epochs, monkeypatch, float64):
    """Preset ``code``: 101 iterations of warm-up and ten of the game; ``default``: ten of the game in two epochs."""
    data = list(batches(steps))
    torch.manual_seed(0)
    method = Divergence(Net(), SPLIT, Divergence.configure(preset, {}))
    with torch.no_grad():  # heads that nearly agree: some target samples look known from the first step on
        first, second = (head.weight for head in method.heads.heads)
        second.copy_(first + 0.05 * torch.randn(first.shape))
    before = copy.deepcopy(method.state_dict())
    theirs = run_loop(load_loop(monkeypatch), method, data, preset, RATE, epochs=epochs)
    method.prepare(Context(steps=steps, rate=RATE))
    play = SGDPlayers(method.train().players(), lr=0.01, total_steps=steps, schedule=method.lr_factor)
    known = []
    for step, (s, y, t) in enumerate(data):
        play.begin(step)
        values = method.update(Batch(s, y, torch.arange(BATCH)), Batch(t, None, torch.arange(BATCH)), step, play)
        known.append(values.get("known"))
    ours = method.state_dict()
    assert set(theirs) == set(ours)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")
    assert max((ours[name] - before[name]).abs().max() for name, _ in method.named_parameters()) > 1e-2
    game = [share for share in known if share is not None]
    assert len(game) == 10 and 0 < sum(game) / 10 < 1  # Step C takes a part of the target


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="set TLLIB_EXT_REAL_TLLIB to a checkout of tllib to run")
@pytest.mark.skipif(not OFFICE.is_dir(), reason=f"needs Office-31 in {OFFICE}")
def test_it_runs_with_the_real_tllib(tmp_path):
    flags = "-s W -t D -a resnet18 --scratch --epochs 1 -i 3 -b 4 -j 0 -p 1 --noise pair --rate 0.2".split()
    done = python(SCRIPT, OFFICE, *flags, "--log", tmp_path, path=[REAL])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "19.6% of the source labels are wrong" in done.stdout  # the authors' draw
    assert " * OS " in done.stdout and "universal label sets, 332 images" in done.stdout
    assert list(tmp_path.glob("train-*.txt")) and (tmp_path / "checkpoints" / "latest.pth").exists()
