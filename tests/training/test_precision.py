"""Number formats: losses in float32 whatever the networks compute in, and one scaler for several players."""

import copy
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tllib_ext.alignment.divergence import divergences, joint_loss, mean_distribution_entropy
from tllib_ext.errors import UserError
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training import compile as compiling
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.precision import Precision

CPU = torch.device("cpu")
SPLIT = LabelSplit(["a", "b", "c"], ["p", "q"], ["u"])


def test_what_a_cpu_gets():
    assert Precision("auto", CPU).name == "fp32" and Precision("bf16", CPU).scaler is None
    for name in ("fp16", "tf32"):
        with pytest.raises(UserError, match="CUDA"):
            Precision(name, CPU)
    with pytest.raises(UserError, match="fp8"):
        Precision("fp8", CPU)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_losses_are_float32_inside_autocast(kind):
    logits, labels = [torch.randn(6, 5).to(kind).requires_grad_() for _ in range(2)], torch.arange(6) % 5
    wide = [head.detach().float() for head in logits]
    with torch.autocast("cpu", torch.bfloat16):
        found = [joint_loss(logits, labels), *divergences(logits), mean_distribution_entropy(logits, 1e-5)]
    expected = [joint_loss(wide, labels), *divergences(wide), mean_distribution_entropy(wide, 1e-5)]
    for a, b in zip(found, expected):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    sum(value.sum() for value in found).backward()
    assert all(head.grad.dtype == kind and head.grad.isfinite().all() for head in logits)


def descents(scaler, steps=6):
    """The paper's method with many descents of two players per iteration; its parameters afterwards."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    net.out_features = 8
    method = Divergence(net, SPLIT, DivergenceHparams(warmup=1, drop_rate=0.25, known_margin=-1e6))
    method.prepare(Context(steps=steps))
    play, g = SGDPlayers(method.players(), 0.05, steps, scaler=scaler), torch.Generator().manual_seed(1)
    for step in range(steps):
        source = Batch(torch.randn(8, 6, generator=g), torch.arange(8) % 5, torch.arange(8))
        play.begin(step)
        method.train().update(source, Batch(torch.randn(8, 6, generator=g), None, torch.arange(8)), step, play)
    return [p.detach().clone() for p in method.parameters()]


def test_one_scaler_for_several_players_changes_nothing():
    """Scales are powers of two: what is scaled and unscaled right is the same to the last bit."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7)  # grows in the middle of an iteration
    for a, b in zip(descents(None), descents(scaler)):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert scaler.get_scale() > 2.0**10


def test_an_infinite_gradient_skips_its_players_step_alone():
    w, v = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    play = SGDPlayers({"G": [{"params": [w]}], "C": [{"params": [v]}]}, lr=0.1, total_steps=5, scaler=scaler)
    play.begin(0)
    play.descend({"steep": w.sqrt().sum() + (v**2).sum()}, "G", "C")  # finite, with an infinite slope at zero
    assert w.item() == 0 and v.item() < 1 and scaler.get_scale() == 2.0
    play.descend({"fine": ((w - 1) ** 2).sum()}, "G")
    assert w.item() > 0 and scaler.get_scale() == 2.0


def test_a_skipped_first_step_leaves_no_momentum():
    """A float16 run begins with steps that its scaler skips; PyTorch's fused SGD would go on with uninitialised memory."""
    rubbish = [torch.full((1,), 1e30) for _ in range(1000)]
    del rubbish
    for _ in range(50):
        w = nn.Parameter(torch.zeros(1))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        play = SGDPlayers({"G": [{"params": [w]}]}, lr=0.1, total_steps=5, scaler=scaler)
        play.begin(0)
        play.descend({"steep": w.sqrt().sum()}, "G")
        play.descend({"fine": ((w - 1) ** 2).sum()}, "G")
        assert w.item() == pytest.approx(0.1 * 2 * 1.9)  # Nesterov: the gradient and 0.9 of it again


def test_collected_parts_are_scaled_like_the_rest():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=8.0)):
        w = nn.Parameter(torch.tensor([1.0, -2.0]))
        play = SGDPlayers({"C": [{"params": [w]}]}, lr=0.1, total_steps=5, scaler=scaler)
        play.begin(0)
        play.accumulate({"first": (w**2).sum()}, "C")
        play.descend({"second": w.sum()}, "C")
        ends.append(w.detach().clone())
    assert torch.equal(*ends)


def test_the_scale_is_part_of_the_state():
    w = nn.Parameter(torch.ones(1))
    first, second = (SGDPlayers({"C": [{"params": [w]}]}, scaler=torch.amp.GradScaler("cpu", init_scale=s)) for s in (4.0, 8.0))
    first.begin(0)
    first.descend({"loss": (w**2).sum()}, "C")
    second.load_state_dict(first.state_dict())
    assert second.scaler.get_scale() == 4.0


HALF = """
    import sys, torch
    from types import SimpleNamespace
    from tllib_ext.methods import METHODS
    from tllib_ext.training import doctor

    CPU, KINDS = torch.device("cpu"), {"bf16": torch.bfloat16, "fp16": torch.float16}

    def precision(name, device):  # as on CUDA: float16 with a scaler
        if name == "fp32":
            return SimpleNamespace(autocast=lambda: torch.autocast("cpu", enabled=False), scaler=None)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if name == "fp16" else None
        return SimpleNamespace(autocast=lambda: torch.autocast("cpu", dtype=KINDS[name]), scaler=scaler)

    doctor.Precision = precision
    for kind, dtype in KINDS.items():
        try:
            with torch.autocast("cpu", dtype=dtype):
                torch.nn.Conv2d(3, 4, 3)(torch.randn(2, 3, 8, 8)).sum().backward()
        except RuntimeError as error:
            print("CANNOT", kind, str(error).splitlines()[0])
            sys.exit(0)
    for name in METHODS:
        full, *halves = (doctor._train(name, CPU, doctor.Workload(batch=6, steps=4, precision=k)) for k in ("fp32", *KINDS))
        for half in halves:
            assert all(loss == loss and abs(loss) < 1e4 for loss in half.losses), (name, half.losses)
            # The first loss; later on a sample more or less may be selected.
            assert all(abs(a - b) < 0.02 * max(1, abs(b)) for a, b in zip(half.losses[:1], full.losses)), (name, half, full)
            assert abs(half.probs - full.probs).mean() < 0.05, (name, half.probs, full.probs)
    print("DONE")
"""


@pytest.mark.slow
def test_every_method_trains_in_half_precision():
    """In a process of its own: oneDNN is told to use what it has even if it takes this processor for too old for bf16."""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(HALF)], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    if "CANNOT" in done.stdout:
        pytest.skip(f"no convolutions in half precision on this processor: {done.stdout.strip()}")
    assert "DONE" in done.stdout


@pytest.mark.slow
def test_compiled_training_ends_where_eager_training_does(feature_root, run_example, tmp_path):
    reason = compiling.why_not(CPU)
    if reason is not None:
        pytest.skip(f"nothing can be compiled here: {reason}")
    for name, more in (("eager", []), ("compiled", ["--compile"])):
        words = [feature_root, "-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair",
                 "--rate", 0.25, "--bottleneck-dim", 8, "-b", 12, "--steps", 12, "--hp", "warmup=3", "--no-report",
                 "--log", tmp_path / name, *more]  # fmt: skip
        code, out, err = run_example("noisy_unida", *words)
        assert code == 0 and "--compile does not work" not in out + err, err
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("eager", "compiled"))
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_torch_compile_gives_the_same(monkeypatch):
    """What ``--compile`` does on a GPU, with the GPU's part played by the CPU."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2))
    except Exception as error:
        pytest.skip(f"torch.compile does not work here: {error}")
    monkeypatch.setattr(compiling, "why_not", lambda device: None)
    torch.manual_seed(0)
    plain = FeatureBottleneck(6, 8).double()
    ours = copy.deepcopy(plain)
    assert compiling.compile_network(ours, torch.device("cuda"))
    x = torch.randn(5, 6, dtype=torch.float64)
    found = [(net(x), *torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters()))) for net in (plain, ours)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b)
    assert list(ours.state_dict()) == list(plain.state_dict())
    with compiling.eagerly(ours):
        torch.testing.assert_close(ours.eval()(x), plain.eval()(x))
