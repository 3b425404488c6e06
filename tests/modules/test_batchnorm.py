"""Replayed and synchronised batch norm in one process; tests/training/test_distributed.py has the processes."""

import copy

import torch
from torch import nn

from tllib_ext.modules.batchnorm import BatchNormReplay
from tllib_ext.modules.synced_batchnorm import convert_sync_batchnorm, is_synced


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)))


def test_conversion_keeps_the_tensors_and_their_names():
    net = network()
    before = net.state_dict(keep_vars=True)
    assert convert_sync_batchnorm(net) is net
    after = net.state_dict(keep_vars=True)
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    assert [is_synced(layer) for layer in (net[0], net[1], net[2][1])] == [False, True, True]


def test_conversion_keeps_the_settings():
    layer = convert_sync_batchnorm(nn.BatchNorm2d(4, eps=0.1, momentum=0.3).eval())
    assert (layer.eps, layer.momentum, layer.training) == (0.1, 0.3, False)


def test_unusual_layers_are_not_converted():
    for layer in (
        nn.BatchNorm1d(3, affine=False),
        nn.BatchNorm1d(3, momentum=None),
        nn.BatchNorm1d(3, track_running_stats=False),
    ):
        assert convert_sync_batchnorm(layer) is layer


def test_a_replay_sees_layers_that_replaced_others():
    net, x = nn.Sequential(nn.BatchNorm1d(3)), torch.randn(8, 3)
    replay = BatchNormReplay(net)
    net[0] = copy.deepcopy(net[0])
    replay.before()
    net(x)
    replay.after()
    replay.apply()
    other = nn.BatchNorm1d(3)
    for _ in range(2):
        other(x)
    torch.testing.assert_close(net[0].running_var, other.running_var)
    assert net[0].num_batches_tracked == 2


def test_a_layer_in_evaluation_mode_is_not_replayed():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval())
    replay, x = BatchNormReplay(net), torch.randn(8, 3)
    replay.before()
    net(x)
    replay.after()
    replay.apply()
    assert net[0].num_batches_tracked == 2 and net[1].num_batches_tracked == 0
    assert torch.equal(net[1].running_mean, torch.zeros(3))
