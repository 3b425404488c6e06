"""Weight gradients by matrix products are those of PyTorch."""

import copy

import pytest
import torch
from torch import nn

from tllib_ext.cpu import convolution
from tllib_ext.cpu.convolution import GemmConv2d, use_matrix_products


def gradients(layer, x, grad):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = layer(x)
    return (out, *torch.autograd.grad(out, (x, layer.weight), grad))


SHAPES = [(1, 0, 1, 4), (1, 1, 3, 4), (2, 1, 3, 8), (2, 1, 3, 7), (1, 0, (3, 2), 5), (1, 2, 5, 6)]


@pytest.mark.parametrize("stride, padding, kernel, side", SHAPES)
@pytest.mark.parametrize("chunk", [1 << 30, 1])
def test_the_same_gradients(monkeypatch, stride, padding, kernel, side, chunk):
    monkeypatch.setattr(convolution, "CHUNK", chunk)
    torch.manual_seed(0)
    plain = nn.Conv2d(6, 128, kernel, stride, padding, bias=False).double().to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    assert use_matrix_products(ours) == 1 and isinstance(ours, GemmConv2d)
    x = torch.randn(3, 6, side, side, dtype=torch.float64).to(memory_format=torch.channels_last)
    grad = torch.randn_like(plain(x))
    for a, b in zip(gradients(plain, x, grad), gradients(ours, x, grad)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert gradients(ours, x, grad)[2].is_contiguous(memory_format=torch.channels_last)


def test_second_derivatives():
    torch.manual_seed(0)
    plain = nn.Conv2d(2, 128, 3, padding=1, bias=False).double().to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    use_matrix_products(ours)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    found = []
    for layer in (plain, ours):
        first = torch.autograd.grad(layer(x).pow(3).sum(), (x, layer.weight), create_graph=True)
        found.append(torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, layer.weight)))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_what_does_not_gain_stays():
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, bias=False), nn.Conv2d(64, 128, 1, 2, bias=False), nn.Conv2d(128, 128, 3, groups=128, bias=False),
        nn.Conv2d(128, 128, 3), nn.Conv2d(128, 128, 3, dilation=2, bias=False),
        nn.Conv2d(128, 128, 3, padding="same", bias=False),
    )  # fmt: skip
    assert use_matrix_products(net) == 0


def test_the_usual_way_elsewhere(monkeypatch):
    """Other layouts, large maps, no gradient, other formats."""
    monkeypatch.setattr(convolution._Convolve, "apply", lambda *args: pytest.fail("took the matrix product"))
    layer = nn.Conv2d(4, 128, 3, padding=1, bias=False)
    use_matrix_products(layer)
    small = torch.randn(1, 4, 4, 4)
    layer(small)  # contiguous
    layer(torch.randn(1, 4, 20, 20).to(memory_format=torch.channels_last))
    with torch.no_grad():
        layer(small.to(memory_format=torch.channels_last))
    with torch.autocast("cpu", torch.bfloat16):
        layer(small.to(memory_format=torch.channels_last))
    layer.requires_grad_(False)(small.to(memory_format=torch.channels_last))


def test_frozen_weights_and_images_without_gradient():
    layer = nn.Conv2d(4, 128, 3, padding=1, bias=False).to(memory_format=torch.channels_last)
    use_matrix_products(layer)
    x = torch.randn(2, 4, 4, 4).to(memory_format=torch.channels_last)
    (grad,) = torch.autograd.grad(layer(x).sum(), layer.weight)
    assert grad.shape == layer.weight.shape
