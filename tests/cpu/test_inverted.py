"""A MobileNet's layers taken several at a time, and compiled, are the layers that they were."""

import copy
from functools import reduce
from operator import getitem

import pytest
import torch
from torch import nn

from tllib_ext.cpu import expansion, inverted
from tllib_ext.cpu.inverted import fold_blocks
from tllib_ext.cpu.suit import ClipInPlace, suit_cpu
from tllib_ext.vision.models.backbones import build_backbone

NARROW, WIDE = 4, 24
MANY, FEW = 8, 4  # sides of images with enough places for the algebra of the widening layer, and without


def layer(conv, act=nn.ReLU6, **norm):
    made = nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels, **norm), act())
    nn.init.normal_(made[1].weight)
    nn.init.normal_(made[1].bias)
    return made


def block(act=nn.ReLU6, stride=1, widening=True, **norm):
    torch.manual_seed(0)
    depthwise = nn.Conv2d(WIDE, WIDE, 3, stride, 1, groups=WIDE, bias=False)
    layers = [layer(depthwise, act, **norm), nn.Conv2d(WIDE, 6, 1, bias=False), nn.BatchNorm2d(6, **norm)]
    if widening:
        layers.insert(0, layer(nn.Conv2d(NARROW, WIDE, 1, bias=False), act, **norm))
    return nn.Sequential(*layers).double().to(memory_format=torch.channels_last)


def images(side=MANY, channels=NARROW):
    x = torch.randn(3, channels, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (2 * x + 3).to(memory_format=torch.channels_last)


def measured(net, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    for _ in range(2):  # the statistics move twice
        out = net(x)
    grad = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
    return (out, *torch.autograd.grad(out, (x, *net.parameters()), grad), *net.buffers())


def assert_same(found, expected, tolerance=1e-10):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6])
@pytest.mark.parametrize("stride, side, widening", [(1, MANY, True), (2, MANY, True), (1, FEW, True), (2, MANY, False)])
def test_the_same_outputs_gradients_and_statistics(act, stride, side, widening):
    plain = block(act, stride, widening, momentum=0.3)
    ours = copy.deepcopy(plain)
    assert fold_blocks(ours) == 1
    assert list(ours.state_dict()) == list(plain.state_dict())
    x = images(side, NARROW if widening else WIDE)
    found = measured(ours, x)
    assert_same(found, measured(plain, x))
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_both_ways_of_widening_are_taken(monkeypatch):
    taken = []
    monkeypatch.setattr(inverted, "widen", lambda *args: taken.append("at once") or expansion.widen(*args))
    net = block()
    fold_blocks(net)
    net(images(MANY))
    assert taken == ["at once"]
    net(images(FEW))
    assert taken == ["at once"]


def test_frozen_layers_pass_the_gradient_on_and_an_image_needs_none():
    plain = block().requires_grad_(False)
    ours = copy.deepcopy(plain)
    fold_blocks(ours)
    for side in (MANY, FEW):
        x = images(side).requires_grad_()
        expected, found = (torch.autograd.grad(net(x).pow(2).sum(), x)[0] for net in (plain, ours))
        torch.testing.assert_close(expected, found, rtol=1e-10, atol=1e-10)
    ours.requires_grad_(True)
    assert all(g.isfinite().all() for g in torch.autograd.grad(ours(images()).sum(), list(ours.parameters())))


def test_the_usual_way_elsewhere(monkeypatch):
    """Evaluation, other layouts, other formats."""
    plain = block()
    ours = copy.deepcopy(plain)
    fold_blocks(ours)
    for function in (expansion._Widen, inverted._NormClipConvolve):
        monkeypatch.setattr(function, "apply", lambda *args: pytest.fail("took the fast way"))
    torch.testing.assert_close(ours(images().contiguous()), plain(images().contiguous()))
    with torch.autocast("cpu", torch.bfloat16):
        ours.float()(images().float())
    assert ours.double().eval()(images()).isfinite().all()


def test_images_of_one_channel():
    """Both layouts are the same in memory for them, but not for what the block makes of them."""
    plain = block()
    plain[0][0] = nn.Conv2d(1, WIDE, 1, bias=False).double()
    ours = copy.deepcopy(plain)
    fold_blocks(ours)
    x = images(24, 1).contiguous()
    assert_same(measured(ours, x), measured(plain, x))


@pytest.mark.parametrize("place", [(0, 1), (1, 1), (3,)])
def test_a_layer_that_keeps_its_statistics_keeps_them(place):
    plain = block()
    ours = copy.deepcopy(plain)
    fold_blocks(ours)
    for net in (plain, ours):
        reduce(getitem, place, net).eval()
    for side in (MANY, FEW):
        assert_same(measured(ours, images(side)), measured(plain, images(side)))


def test_only_what_is_usual_is_exchanged():
    def but(**changes):
        net = block()
        for place, other in changes.items():
            net[int(place[1:])] = other
        return net

    others = [
        but(_2=nn.Conv2d(WIDE, 6, 1)),
        but(_2=nn.Conv2d(WIDE, 6, 3, bias=False)),
        but(_3=nn.BatchNorm2d(6, affine=False)),
        but(_3=nn.BatchNorm2d(6, momentum=None)),
        but(_1=layer(nn.Conv2d(WIDE, WIDE, 3, bias=False))),
        but(_1=layer(nn.Conv2d(WIDE, WIDE, 1, groups=WIDE, bias=False))),
        but(_1=layer(nn.Conv2d(WIDE, WIDE, 3, groups=WIDE, padding_mode="reflect", padding=1, bias=False))),
        but(_0=layer(nn.Conv2d(NARROW, WIDE, 3, bias=False))),
        but(_0=layer(nn.Conv2d(NARROW, WIDE, 1, bias=False), nn.SiLU)),
        nn.Sequential(*block(), nn.Identity()),
    ]
    assert [fold_blocks(net) for net in others] == [0] * len(others)


def test_no_second_derivatives_and_it_says_so():
    net = block()
    fold_blocks(net)
    for side in (MANY, FEW):
        x = images(side).requires_grad_()
        (first,) = torch.autograd.grad(net(x).pow(3).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.pow(2).sum().backward()


def test_clipping_in_place_is_relu6_and_keeps_its_output_alone():
    torch.manual_seed(0)
    x = (4 * torch.randn(50, dtype=torch.float64)).requires_grad_()
    found = []
    for act in (nn.ReLU6(), ClipInPlace(inplace=True)):
        y = act(x * 1)
        found.append((y, *torch.autograd.grad(y.pow(2).sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*found))
    before = (x * 1).detach()
    assert ClipInPlace(inplace=True)(before) is before and before.min() == 0  # in place without a gradient too
    with pytest.raises(RuntimeError, match="in-place"):
        ClipInPlace(inplace=True)(x)  # as nn.ReLU6: a leaf must not be overwritten


@pytest.mark.parametrize("arch, exchanged", [("mobilenet_v2", 17), ("resnet18", 0)])
def test_a_network_for_the_cpu_is_the_same_network(arch, exchanged):
    torch.manual_seed(0)
    plain = build_backbone(arch, None).double().to(memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    suit_cpu(ours)
    assert sum(isinstance(module, inverted.Block) for module in ours.modules()) == exchanged
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64).to(memory_format=torch.channels_last)
    found = [(net(x), *torch.autograd.grad(net(x).pow(2).sum(), list(net.parameters())), *net.buffers()) for net in (plain, ours)]
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert list(ours.state_dict()) == list(plain.state_dict())


def test_one_value_per_channel_is_refused_as_batch_norm_does():
    net = block()
    fold_blocks(net)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        net(images(1)[:1])
