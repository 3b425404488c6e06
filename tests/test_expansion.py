"""A widening layer by matrix products is the convolution, batch norm and ReLU that it was."""

import copy

import pytest
import torch
from torch import nn

from tllib_ext.modules import expansion
from tllib_ext.modules.convolution import use_matrix_products
from tllib_ext.modules.cpu import ClipInPlace, suit_cpu
from tllib_ext.modules.expansion import fold_expansions
from tllib_ext.vision.models.backbones import build_backbone

CHANNELS, SIDE = 4, 8


def block(act=nn.ReLU6, **norm):
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(CHANNELS, 24, 1, bias=False), nn.BatchNorm2d(24, **norm), act())
    nn.init.normal_(made[1].weight)
    nn.init.normal_(made[1].bias)
    return made.double().to(memory_format=torch.channels_last)


def images(side=SIDE):
    x = torch.randn(3, CHANNELS, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (2 * x + 3).to(memory_format=torch.channels_last)


def refuse(*args):
    pytest.fail("took the matrix products")


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6])
def test_the_same_outputs_gradients_and_statistics(act):
    plain = block(act, momentum=0.3)
    ours = copy.deepcopy(plain)
    assert fold_expansions(ours) == 1
    assert list(ours.state_dict()) == list(plain.state_dict())
    found = []
    for net in (plain, ours):
        x = images().requires_grad_()
        for _ in range(2):  # the statistics move twice
            out = net(x)
        grad = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
        found.append((out, *torch.autograd.grad(out, (x, *net.parameters()), grad), *net.buffers()))
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last) and (found[1][0] == 0).any()


def test_a_frozen_layer_passes_the_gradient_on_and_an_image_needs_none():
    plain = block().requires_grad_(False)
    ours = copy.deepcopy(plain)
    fold_expansions(ours)
    x = images().requires_grad_()
    expected, found = (torch.autograd.grad(net(x).pow(2).sum(), x)[0] for net in (plain, ours))
    torch.testing.assert_close(expected, found, rtol=1e-10, atol=1e-10)
    ours.requires_grad_(True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(ours(images()).sum(), list(ours.parameters())))


def test_the_usual_way_elsewhere(monkeypatch):
    """Evaluation, other layouts, few places, other formats."""
    plain = block()
    ours = copy.deepcopy(plain)
    use_matrix_products(ours)
    assert fold_expansions(ours) == 1
    monkeypatch.setattr(expansion._Expand, "apply", refuse)
    for x in (images().contiguous(), images(side=4)):
        torch.testing.assert_close(ours(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        ours.float()(images().float())
    assert torch.equal(ours.double().eval()(images()), ours(images()))


def test_only_what_widens_and_is_usual_is_exchanged():
    conv, norm = nn.Conv2d(4, 24, 1, bias=False), nn.BatchNorm2d(24)
    others = [
        nn.Sequential(nn.Conv2d(24, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU6()),
        nn.Sequential(nn.Conv2d(4, 24, 3, bias=False), norm, nn.ReLU6()),
        nn.Sequential(nn.Conv2d(4, 24, 1), norm, nn.ReLU6()),
        nn.Sequential(conv, nn.BatchNorm2d(24, momentum=None), nn.ReLU6()),
        nn.Sequential(conv, nn.BatchNorm2d(24, affine=False), nn.ReLU6()),
        nn.Sequential(conv, norm, nn.SiLU()),
        nn.Sequential(conv, norm),
    ]
    assert [fold_expansions(net) for net in others] == [0] * len(others)


def test_no_second_derivatives_and_it_says_so():
    net = block()
    fold_expansions(net)
    x = images().requires_grad_()
    (first,) = torch.autograd.grad(net(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.pow(2).sum().backward()


def test_clipping_in_place_is_relu6_and_keeps_its_output_alone():
    torch.manual_seed(0)
    x = (4 * torch.randn(50, dtype=torch.float64)).requires_grad_()
    found = []
    for layer in (nn.ReLU6(), ClipInPlace(inplace=True)):
        y = layer(x * 1)
        found.append((y, *torch.autograd.grad(y.pow(2).sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*found))
    before = (x * 1).detach()
    assert ClipInPlace(inplace=True)(before) is before and before.min() == 0  # in place without a gradient too
    with pytest.raises(RuntimeError, match="in-place"):
        ClipInPlace(inplace=True)(x)  # as nn.ReLU6: a leaf must not be overwritten


def test_a_network_for_the_cpu_is_the_same_network():
    torch.manual_seed(0)
    plain = build_backbone("mobilenet_v2", None).double().to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    suit_cpu(ours)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64).to(memory_format=torch.channels_last)
    found = [(net(x), *torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters())), *net.buffers()) for net in (plain, ours)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert list(ours.state_dict()) == list(plain.state_dict())
