"""The contract that every method shares: hyper-parameters and their presets, groups of parameters, learning rates."""

import math
from dataclasses import dataclass
from typing import Optional, Union

import pytest
import torch
from torch import nn

from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch, Hparams, Method, hparam
from tllib_ext.methods.dance import Dance, DanceHparams
from tllib_ext.methods.divergence import Divergence, DivergenceHparams
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.players import SGDPlayers

SPLIT = LabelSplit(["a", "b"], ["c"], ["d"])


@dataclass
class Some(Hparams):
    number: float = hparam(1.0, "")
    count: int = hparam(1, "")
    switch: bool = hparam(True, "")
    word: str = hparam("x", "")
    either: Union[float, str] = hparam("code", "")
    maybe: Optional[int] = hparam(None, "")


GOOD = [("number", "0.5", 0.5), ("number", 2, 2), ("count", "3", 3), ("switch", "no", False), ("word", "none", "none"),
        ("either", "1.2", 1.2), ("either", "log_k", "log_k"), ("either", "official", "code"), ("maybe", "None", None),
        ("maybe", "7", 7), ("maybe", None, None)]  # fmt: skip


@pytest.mark.parametrize("name, value, expected", GOOD)
def test_text_is_read_as_the_type_of_its_field(name, value, expected):
    found = getattr(Some.parse({name: value}), name)
    assert found == expected and type(found) is type(expected)


BAD = [("number", "many"), ("number", "nan"), ("number", math.inf), ("number", True), ("number", [1]), ("number", "none"),
       ("count", "1.5"), ("count", 1.5), ("switch", "perhaps"), ("switch", 1), ("word", 3), ("either", "nan"),
       ("either", None), ("maybe", "x")]  # fmt: skip


@pytest.mark.parametrize("name, value", BAD)
def test_a_value_of_another_type_is_an_error_that_names_it(name, value):
    with pytest.raises(UserError, match=f"hyper-parameter {name}="):
        Some.parse({name: value})


@pytest.mark.parametrize("hparams, name", [(DanceHparams, "rho"), (DivergenceHparams, "delta")])
def test_a_number_is_accepted_where_the_message_offers_one(hparams, name):
    assert getattr(hparams.parse({name: "1.2"}), name) == 1.2
    with pytest.raises(UserError, match=f"{name}='half': expected code, log_k(, auto)? or a number"):
        hparams.parse({name: "half"})


def test_names_of_version_0_1_still_load():
    assert DivergenceHparams.parse({"delta": "official"}).delta == "code"
    assert DanceHparams.parse({"rho": "official"}).rho == "code"
    assert Divergence.configure("official", {}) == Divergence.configure("default", {}) == DivergenceHparams()
    assert METHODS.get("tcl").configure("released", {}) == METHODS.get("tcl").configure("code", {})


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_has_the_same_names_of_presets(name):
    presets = METHODS.get(name).presets
    assert list(presets)[0] == "default" and presets["default"] == {}
    assert set(presets) <= {"default", "code", "paper"}


def test_an_unknown_preset_names_the_closest():
    with pytest.raises(UserError, match="unknown preset 'papr' of Dance: did you mean 'paper'"):
        Dance.configure("papr", {})
    assert Dance.configure("paper", {"m": "0.3"}) == DanceHparams(rho="log_k", eps=0.0, m=0.3)


def test_a_target_batch_has_no_labels():
    with pytest.raises(ValueError, match="no labels"):
        Batch(torch.zeros(1), None, torch.zeros(1)).labels  # noqa: B018


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS.get(name).training_free])
@pytest.mark.parametrize("mult", [0.1, 0.7])
def test_the_bottleneck_learns_at_its_own_rate_in_every_method(name, mult):
    method = METHODS.get(name)(FeatureBottleneck(4, 6, lr_mult=mult), SPLIT)
    rates = {id(p): group.get("lr_mult", 1.0) for groups in method.players().values() for group in groups
             for p in group["params"]}  # fmt: skip
    assert {rates[id(p)] for p in method.backbone.parameters()} == {mult}
    assert {rate for key, rate in rates.items() if key not in set(map(id, method.backbone.parameters()))} == {1.0}


def test_a_pretrained_backbone_learns_at_a_tenth():
    net = nn.Linear(3, 3)
    assert Method(net, SPLIT).backbone_groups()[0]["lr_mult"] == 0.1
    assert Method(net, SPLIT).backbone_groups(0.5)[0]["lr_mult"] == 0.05


def test_groups_may_have_optimiser_settings_of_their_own():
    """Against torch's SGD with the settings written out."""
    start = torch.tensor([1.0, -2.0])
    a, b = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    group = {"params": [b], "lr": 0.004, "lr_mult": 0.5, "momentum": 0.0, "weight_decay": 0.1, "nesterov": False}
    play = SGDPlayers({"G": [{"params": [a]}, group]}, lr=0.2, total_steps=4, schedule=lambda step, steps: 1 - step / steps)
    x, y = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    usual = torch.optim.SGD([x], lr=0.2, momentum=0.9, weight_decay=5e-4, nesterov=True)
    own = torch.optim.SGD([y], lr=0.002, weight_decay=0.1)
    for step in range(4):
        play.begin(step)
        play.descend({"cubes": (a**4).sum() + (b**4).sum()}, "G")
        usual.param_groups[0]["lr"], own.param_groups[0]["lr"] = 0.2 * (1 - step / 4), 0.002 * (1 - step / 4)
        for opt, p in ((usual, x), (own, y)):
            opt.zero_grad()
            (p**4).sum().backward()
            opt.step()
        torch.testing.assert_close((a.data, b.data), (x.data, y.data))


def test_players_of_a_checkpoint_without_base_lr_go_on():
    w = nn.Parameter(torch.ones(1))
    play = SGDPlayers({"C": [{"params": [w], "lr_mult": 0.5}]}, lr=0.2, total_steps=4)
    state = play.state_dict()
    for group in state["optimisers"]["C"]["param_groups"]:
        del group["base_lr"]
    play.load_state_dict(state)
    play.begin(0)
    assert play.optimisers["C"].param_groups[0]["lr"] == pytest.approx(0.1)
