"""The result of a run does not depend on how many processes share its batches; none of them hangs."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT, without_refused
from together import Together, free_port
from torch import nn

from tllib_ext.alignment.divergence import HeadMinimax, SmallLossSelection, TargetSeparation, pooled_small_loss
from tllib_ext.cli.parser import Parser, add_run_arguments, parse_run
from tllib_ext.distributed import gather_rows, pooled_any, pooled_mean, rank, world_size
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.methods.posterior import estimated_target
from tllib_ext.modules.synced_batchnorm import convert_sync_batchnorm, is_synced
from tllib_ext.split import LabelSplit
from tllib_ext.training.build import build
from tllib_ext.training.players import SGDPlayers
from tllib_ext.training.trainer import train

SPLIT = LabelSplit(["a", "b", "c"], ["p", "q"], ["u"])


def flags(root, log, batch, *more, norm="none"):
    return [root, "-d", "features", "-s", "alpha", "-t", "beta", "--split", "3/2/1", "--noise", "pair", "--rate", 0.25,
            "--bottleneck-dim", 8, "--bottleneck-norm", norm, "-b", batch, "--steps", 20, "--eval-every", 10, "--no-report",
            "--hp", "warmup=3", "--log", log, *more]  # fmt: skip


def built(words):
    parser = Parser()
    add_run_arguments(parser)
    return build(parse_run(parser, [str(word) for word in words]))


def numbers(method):
    return {name: value.cpu().numpy() for name, value in method.state_dict().items()}


def train_run(words):
    """One run of the training script; results, and every parameter at the end."""
    parts = built(words)
    return train(parts).results, numbers(parts.method)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_two_processes_and_one_end_alike(feature_root, tmp_path, norm):
    one, alone = train_run(flags(feature_root, tmp_path / "one", 36, norm=norm))
    (two, first), (_, second) = Together(2, train_run, flags(feature_root, tmp_path / "two", 18, norm=norm)).results()
    assert 0 < one["train_kept"] < 1 and one["train_known"] > 0  # selection and Step C took part
    for name in alone:
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], alone[name], rtol=0, atol=1e-5)
    for name in ("os", "os_star", "unk", "h_score", "accuracy", "closed_accuracy", "realised_rate"):
        assert two[name] == one[name]
    for name in ("train_loss", "train_kept", "train_known", "train_crs"):
        assert two[name] == pytest.approx(one[name], abs=1e-4)
    assert (one["processes"], two["processes"]) == (1, 2)
    # One process writes, and every image stands in the file once.
    lines = [(tmp_path / run / "predictions.csv").read_text().splitlines() for run in ("one", "two")]
    assert len(lines[0]) == len(lines[1]) == len({line.split(",")[0] for line in lines[1]})


def normalise(x, g, kind, world):
    """Forward and backward through a batch norm with this process's share of the samples; everything that it changes."""
    layer = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[x.ndim](x.shape[1]).to(kind)
    nn.init.uniform_(layer.weight, 0.5, 2, generator=torch.Generator().manual_seed(0))
    if world > 1:
        layer = convert_sync_batchnorm(layer)
        assert is_synced(layer)
    share = len(x) // world
    mine = slice(rank() * share, (rank() + 1) * share)
    part = x[mine].to(kind).requires_grad_()
    out = layer(part)
    grads = torch.autograd.grad(out, [part, layer.weight, layer.bias], g[mine].to(out))
    still = layer.eval()(x.to(kind))
    numbers = [out, grads[0], *grads[1:], layer.running_mean, layer.running_var, layer.num_batches_tracked, still]
    return [value.detach().float().numpy() for value in numbers]


@pytest.mark.parametrize("shape, kind, tolerance", [
    ((8, 5), torch.float64, 1e-6), ((8, 5), torch.float32, 1e-5), ((4, 5, 3, 2), torch.float32, 1e-5),
    ((2, 5, 1, 1), torch.float64, 1e-6)])  # fmt: skip
def test_batch_norm_is_over_the_global_batch(shape, kind, tolerance):
    x, grad = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    x = 3 * x + torch.arange(5.0).view(-1, *[1] * (len(shape) - 2))
    alone = normalise(x, grad, kind, 1)
    first, second = Together(2, normalise, x, grad, kind, 2).results()
    for i, (whole, a, b) in enumerate(zip(alone, first, second)):
        if i < 2:  # the processes have parts of the samples
            a = np.concatenate([a, b])
        elif i < 4:  # and of the sums over them
            a = a + b
        else:
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, whole, rtol=tolerance, atol=tolerance, err_msg=str(i))


def pooled():
    """Masks of which one process has everything and the other nothing."""
    values = torch.arange(4.0) + 10 * rank() + 1
    mask = torch.full((4,), rank() == 0)
    x = torch.ones(4, requires_grad=True)
    mean = pooled_mean(values * x, mask)
    (grad,) = torch.autograd.grad(mean, x)
    nobody = pooled_mean(values, torch.zeros(4, dtype=torch.bool))
    small = pooled_small_loss(values * torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.5)
    everyone = gather_rows(values)
    return mean.item() / world_size(), grad.tolist(), nobody.item(), small.tolist(), pooled_any(mask).item(), everyone.tolist()


def losses_of_the_paper():
    """Value and gradient of the modules of Steps A to C on this process's share of eight samples."""
    g = torch.Generator().manual_seed(0)
    logits, labels = [2 * torch.randn(8, 5, generator=g) for _ in range(2)], torch.randint(5, (8,), generator=g)
    share = 8 // world_size()
    mine = slice(rank() * share, (rank() + 1) * share)
    logits = [head[mine].requires_grad_() for head in logits]
    minimax = HeadMinimax(3.0, over="selected")
    values = [SmallLossSelection(0.25)(logits, labels[mine]), TargetSeparation(1.6, valid=2.0)(logits), minimax.apart(logits),
              minimax.together(logits, minimax.known(logits))]  # fmt: skip
    return [(value.item(), torch.autograd.grad(value, logits)[0].numpy()) for value in values]


def test_the_modules_of_the_paper_average_over_the_global_batch():
    alone = losses_of_the_paper()
    for (value, grad), (a, of_a), (b, of_b) in zip(alone, *Together(2, losses_of_the_paper).results()):
        assert (a + b) / 2 == pytest.approx(value, rel=1e-5)  # processes average their losses and gradients
        np.testing.assert_allclose(np.concatenate([of_a, of_b]) / 2, grad, rtol=1e-5, atol=1e-6)


def test_means_masks_and_selections_are_over_the_global_batch():
    first, second = Together(2, pooled).results()
    assert first[0] + second[0] == pytest.approx(2.5)  # averaged over processes: the mean of 1, 2, 3, 4
    assert second[1] == [0.0] * 4 and sum(first[1]) / 2 == pytest.approx(2.5)
    assert first[2] == second[2] == 0.0
    assert first[3] == [False, True, False, True] and second[3] == [False, True, False, True]
    assert first[4] and second[4]
    assert first[5] == second[5] == [1.0, 2.0, 3.0, 4.0, 11.0, 12.0, 13.0, 14.0]


def update_with_one_empty_mask():
    """A step in which only the first process's target samples look known; the new parameters."""
    torch.manual_seed(0)
    net = nn.Linear(6, 8)
    net.out_features = 8
    method = Divergence(net, SPLIT, DivergenceHparams(warmup=0, drop_rate=0.25))
    x_s, y = torch.randn(8, 6), torch.arange(8) % 5
    x_t = torch.randn(8, 6)
    with torch.no_grad():
        # Both heads are sure, and of the same, in the first half; in the second each is sure of something else.
        f = nn.functional.normalize(net(x_t), dim=1)
        x_t[4:] = x_t[4]
        for other, head in enumerate(method.heads.heads):
            head.weight.copy_(f[[0, 1, 2, 3, 0]])
            head.weight[other] += 3 * f[4]
        method.heads.normalise_rows()
    method.prepare(Context(steps=10))
    known = method.eval().predict(x_t).score < method.delta - 1
    mine = slice(rank() * 4, rank() * 4 + 4) if world_size() > 1 else slice(None)
    play = SGDPlayers(method.players(), 0.1, 10)
    play.begin(0)
    log = method.train().update(Batch(x_s[mine], y[mine], torch.arange(8)[mine]), Batch(x_t[mine], None, None), 0, play)
    return known.tolist(), [p.detach().numpy() for p in method.parameters()], float(log["known"])


def test_an_empty_mask_on_one_process_hangs_nothing():
    known, alone, _ = update_with_one_empty_mask()
    assert any(known[:4]) and not any(known[4:])
    (_, first, some), (_, second, none) = Together(2, update_with_one_empty_mask).results()
    assert some > 0 and none == 0
    for a, b, c in zip(alone, first, second):
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def script(world, number, port, words):
    env = {**os.environ, "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}  # fmt: skip
    words = [sys.executable, ROOT / "examples" / "noisy_unida.py", *words]
    return subprocess.Popen([str(word) for word in words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert condition()


@pytest.mark.slow
def test_losing_a_process_ends_the_others_with_a_message(feature_root, tmp_path):
    words, port = flags(feature_root, tmp_path / "run", 12, "--steps", 100000), free_port()
    both = [script(2, number, port, words) for number in range(2)]
    wait_for((tmp_path / "run" / "results.jsonl").exists)
    both[1].send_signal(signal.SIGKILL)
    out, err = both[0].communicate(timeout=60)
    both[1].communicate()
    assert both[0].returncode == 1
    assert "another process of this run ended" in err and "Traceback" not in err


@pytest.mark.slow
def test_torchrun(feature_root, tmp_path):
    # -- or torchrun takes --log for its own
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
             "--", ROOT / "examples" / "noisy_unida.py", *flags(feature_root, tmp_path / "run", 12)]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").exists()
    assert done.stdout.count("step    10") == 1  # one process speaks


def train_and_predict(words):
    """A run, and what this process alone then says of the whole target."""
    parts = built(words)
    results = train(parts).results
    method = parts.method.eval()
    method.refresh()
    told = [value.numpy().tobytes() for value in method.predict(parts.target.features)]
    return results, numbers(method), told, estimated_target(method) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_runs_on_two_processes(feature_root, tmp_path, name):
    words = flags(feature_root, tmp_path / name, 12, "-m", name, "--steps", 4, "--eval-every", 4)
    words = without_refused([word for word, before in zip(words, [None, *words]) if "--hp" not in (word, before)], name)
    (results, first, told, has_target), (_, second, told_too, _) = Together(2, train_and_predict, words).results()
    assert results["processes"] == 2 and np.isfinite(results["os"])
    for key in first:
        assert np.isfinite(first[key]).all(), key
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
    assert told == told_too, "probabilities, scores and decisions are the same bytes"
    assert has_target or name not in ("credo", "mixture")
