"""The compiled loops against what they replace, written out; and what happens where nothing can be compiled."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tllib_ext.cpu import kernels, winograd
from tllib_ext.cpu.compiled import use_kernels
from tllib_ext.cpu.kernels import library, norm_clip, norm_clip_back, norm_clip_depthwise, norm_clip_depthwise_back
from tllib_ext.cpu.winograd import WinogradConv2d
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.training.compiling import compile_network, why_not

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(why_not(CPU) is not None, reason="nothing can be compiled here")

CLIPS = [(-math.inf, math.inf), (0.0, math.inf), (0.0, 6.0)]


def longhand(y, gamma, beta, eps, clip):
    mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), unbiased=False, keepdim=True)
    z = (y - mean) / torch.sqrt(var + eps) * gamma.view(1, -1, 1, 1) + beta.view(1, -1, 1, 1)
    return z.clamp(*clip), mean.flatten(), var.flatten()


def norm_of(gamma, beta):
    norm = nn.BatchNorm2d(len(gamma), momentum=0.3).to(gamma.dtype)
    norm.weight.data, norm.bias.data = gamma, beta
    return norm


def random(seed, *shape, dtype=torch.float64):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    return made.to(memory_format=torch.channels_last) if len(shape) == 4 else made


def problem(n, channels, side, seed, dtype=torch.float64, offset=0.0):
    y = 2 * random(seed, n, channels, side, side) + offset
    gamma, beta, grad = (random(seed + i, *shape) for i, shape in enumerate(([channels], [channels], y.shape), 1))
    return [t.to(dtype) for t in (y, gamma, beta, grad)]


def assert_close(found, expected, tolerance=1e-8):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def leaves(*tensors):
    return [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 37), st.integers(2, 13), st.sampled_from(CLIPS), st.integers(0, 99))
def test_norm_and_clip(n, channels, side, clip, seed):
    y, gamma, beta, grad = problem(n, channels, side, seed)
    inputs = leaves(y, gamma, beta)
    expected, mean, var = longhand(*inputs, 1e-5, clip)
    norm = norm_of(gamma, beta)
    memo = kernels.norm_statistics(y, norm)
    z = norm_clip(y, memo, *clip)
    assert_close([z, memo[0], memo[1]], [expected, mean, var])
    places = y.numel() // channels
    assert_close([norm.running_mean, norm.running_var], [0.3 * mean, 0.7 + 0.3 * var * places / (places - 1)])
    assert norm.num_batches_tracked == 1
    found = norm_clip_back(grad, y, memo, 1e-5, *clip, torch.empty_like(y))
    assert_close(found, torch.autograd.grad(expected, inputs, grad))
    assert torch.equal(norm_clip_back(grad, y, memo, 1e-5, *clip, grad)[0], found[0])  # in place


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from([8, 24]), st.integers(1, 9), st.integers(1, 70), st.sampled_from([1, 2]),
    st.sampled_from(CLIPS), st.integers(0, 99),
)  # fmt: skip
def test_norm_clip_and_depthwise_convolution(n, channels, high, wide, stride, clip, seed):
    y = 2 * random(seed, n + 1, channels, high, wide)
    gamma, beta, weight = (random(seed + i, *shape) for i, shape in enumerate(([channels], [channels], [channels, 1, 3, 3]), 1))
    inputs = leaves(y, gamma, beta, weight)
    expected = F.conv2d(longhand(*inputs[:3], 1e-5, clip)[0], inputs[3], None, stride, 1, 1, channels)
    memo = kernels.norm_statistics(y, norm_of(gamma, beta))
    found = norm_clip_depthwise(y, memo, *clip, weight, stride)
    assert_close([found], [expected])
    grad = random(seed + 5, *found.shape)
    back = norm_clip_depthwise_back(grad, y, memo, 1e-5, *clip, weight, stride)
    assert_close(back, torch.autograd.grad(expected, inputs, grad), 1e-7)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([32, 64]),
    st.sampled_from([32, 96]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 99),
)
def test_convolutions_with_fewer_multiplications(n, channels, out, high, wide, seed):
    x, weight = leaves(random(seed, n, channels, high, wide), random(seed + 1, out, channels, 3, 3))
    grad = random(seed + 2, n, out, high, wide)
    usual = F.conv2d(x, weight, padding=1)
    expected = usual, *torch.autograd.grad(usual, (x, weight), grad)
    for chunk in (1 << 30, 1):  # all images at once, and one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(winograd, "CHUNK", chunk)
            y = winograd._Winograd.apply(x, weight)
            assert_close((y, *torch.autograd.grad(y, (x, weight), grad)), expected, 1e-10)


def test_they_are_no_less_exact_than_others_in_single_precision():
    x, weight = random(0, 4, 64, 16, 16), random(1, 64, 64, 3, 3)
    exact = F.conv2d(x, weight, padding=1)
    ours, usual = winograd._Winograd.apply(x.float(), weight.float()), F.conv2d(x.float(), weight.float(), padding=1)
    assert (ours - exact).abs().max() < 2 * (usual - exact).abs().max()


def test_single_precision_far_from_zero():
    """Mean 500, deviation 2: squares around zero would leave three digits of the variance."""
    y, gamma, beta, _ = problem(12, 24, 32, 0, torch.float32, offset=500.0)
    memo = kernels.norm_statistics(y, norm_of(gamma, beta))
    expected, mean, var = longhand(y.double(), gamma.double(), beta.double(), 1e-5, (0.0, 6.0))
    torch.testing.assert_close(memo[:2].double(), torch.stack([mean, var]), rtol=1e-5, atol=0)
    torch.testing.assert_close(norm_clip(y, memo, 0.0, 6.0).double(), expected, rtol=0, atol=2e-3)  # y's own spacing is 3e-5


def test_what_is_not_a_number_stays_visible():
    y, gamma, beta, _ = problem(2, 8, 4, 0, torch.float32)
    y[0, 1, 2, 2] = math.nan
    memo = kernels.norm_statistics(y, norm_of(gamma, beta))
    weight = random(1, 8, 1, 3, 3, dtype=torch.float32)
    for z in (norm_clip(y, memo, *CLIPS[2]), norm_clip_depthwise(y, memo, *CLIPS[2], weight, 1)):
        assert z[:, 1].isnan().all() and z[:, [0, *range(2, 8)]].isfinite().all()


def test_a_channel_that_never_varies():
    y, gamma, beta, grad = problem(2, 3, 4, 0, torch.float32)
    y[:, 1] = 7.0
    memo = kernels.norm_statistics(y, norm_of(gamma, beta))
    assert memo[1, 1] == 0 and (norm_clip(y, memo, *CLIPS[0])[:, 1] == beta[1]).all()
    assert norm_clip_back(grad, y, memo, 1e-5, *CLIPS[0], grad)[0].isfinite().all()


@pytest.fixture
def threads(request):
    """So many for PyTorch and the loops."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [5], indirect=True)
def test_the_same_bits_every_time(threads):
    y, gamma, beta, grad = problem(5, 24, 16, 0, torch.float32)
    weight, found = random(9, 24, 1, 3, 3, dtype=torch.float32), []
    for _ in range(20):
        memo = kernels.norm_statistics(y, norm_of(gamma, beta))
        both = norm_clip_depthwise_back(grad, y, memo, 1e-5, 0.0, 6.0, weight, 1)
        both += norm_clip_back(grad, y, memo, 1e-5, 0.0, 6.0, torch.empty_like(y))
        found.append(torch.cat([t.flatten() for t in (memo, *both)]))
    assert all(torch.equal(found[0], other) for other in found)


class Small(nn.Module):
    """One of each: (convolution, batch norm, ReLU), wide convolution, lone batch norm, a mean over places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.wide, self.norm = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)

    def forward(self, x):
        return self.norm(self.wide(self.layer(x))).mean((2, 3))


def together(net, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = [net(x) for _ in range(2)][1]  # the statistics move twice
    return (out, *torch.autograd.grad(out.pow(2).sum(), (x, *net.parameters())), *net.buffers())


@pytest.mark.parametrize(
    "build, shape, exchanged",
    [
        (Small, (3, 3, 9, 7), 4),
        (lambda: FeatureBottleneck(64, 20), (5, 64), 1),
        (lambda: FeatureBottleneck(48, 20), (5, 48), 1),
        (lambda: FeatureBottleneck(64, 20, "none"), (5, 64), 0),
    ],
)
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_compiled_network_is_the_same_network(threads, build, shape, exchanged):
    torch.manual_seed(0)
    plain = build().double().to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    assert use_kernels(ours) == exchanged and list(ours.state_dict()) == list(plain.state_dict())
    x = random(1, *shape)
    assert_close(together(ours, x), together(plain, x))
    assert_close([ours.eval()(x)], [plain.eval()(x)])
    assert_close([ours.train().requires_grad_(False)(x)], [plain.train().requires_grad_(False)(x)])


def test_other_numbers_than_the_images_are_refused():
    y, gamma, beta, _ = problem(2, 8, 4, 0)
    with pytest.raises(TypeError, match="float64.*float32"):
        kernels.norm_statistics(y, norm_of(gamma.float(), beta.float()))
    with pytest.raises(ValueError, match="more than 1 value"):
        kernels.norm_statistics(y[:0], norm_of(gamma, beta))


def test_somebody_elses_gradient_is_not_written_to():
    net = Small().to(memory_format=torch.channels_last)
    use_kernels(net)
    x = random(1, 3, 3, 9, 7, dtype=torch.float32)
    y = net.layer(x)
    kept = torch.randn_like(y)
    before = kept.clone()
    torch.autograd.grad(y, list(net.layer.parameters()), kept)
    assert torch.equal(kept, before)


def test_the_usual_way_elsewhere(monkeypatch):
    """Other layouts, autocast, evaluation."""
    net = Small()
    use_kernels(net)
    monkeypatch.setattr(kernels, "library", lambda dtype: pytest.fail("took the compiled way"))
    x = random(1, 3, 3, 9, 7, dtype=torch.float32)
    assert net(x.contiguous()).isfinite().all()
    net.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        net(x)
    assert net.eval()(x).isfinite().all()


def test_only_convolutions_that_fit():
    def made(*args, **more):
        return nn.Conv2d(*args, **{"bias": False, "padding": 1, **more})

    others = [made(64, 64, 3, stride=2), made(64, 64, 3, bias=True), made(64, 64, 5), made(64, 64, 3, padding=0),
              made(64, 64, 3, groups=2), made(64, 64, 3, dilation=2), made(32, 64, 3), made(64, 72, 3),
              made(64, 64, 3, padding_mode="circular"), made(64, 64, 3, padding="same")]  # fmt: skip
    assert [use_kernels(nn.Sequential(conv)) for conv in others] == [0] * len(others)
    fits = nn.Sequential(made(64, 96, 3))
    assert use_kernels(fits) == 1 and isinstance(fits[0], WinogradConv2d)


def test_without_a_compiler_training_goes_on_and_says_why(monkeypatch):
    said, net = [], Small()
    library.cache_clear()
    try:
        monkeypatch.setenv("CC", "false")
        assert not compile_network(net, CPU, said.append)
        assert "going on without it" in said[0] and "false" in said[0] and type(net.norm) is nn.BatchNorm2d
        monkeypatch.setattr("shutil.which", lambda name: None)
        assert not compile_network(net, CPU, said.append)
        assert "C compiler" in said[1] and "gcc" in said[1]
    finally:
        library.cache_clear()
    monkeypatch.undo()
    assert compile_network(net, CPU, said.append) and "exchanged 4 of" in said[2]
