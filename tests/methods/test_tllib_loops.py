"""Preset ``code`` of every built-in against tllib's own ``train()`` of the example script: ten iterations, all parameters.

Needs a checkout of tllib with its examples (``TLLIB_EXT_REAL_TLLIB``); ``test_tllib_builtin.py`` runs this file with it.
"""

import copy
import importlib.util
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from test_method_sweep import IN, SPLITS, Tiny
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from tllib_ext.compat import tllib
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Batch
from tllib_ext.methods.context import Context
from tllib_ext.training.players import SGDPlayers

EXAMPLES = Path(os.environ.get("TLLIB_EXT_REAL_TLLIB", "")) / "examples" / "domain_adaptation"
HERE = importlib.util.find_spec("tllib") is not None and EXAMPLES.is_dir()
pytestmark = pytest.mark.skipif(not HERE, reason="tllib and its examples are not importable here; see TLLIB_EXT_REAL_TLLIB")
SPLIT, BATCH, ITERATIONS = SPLITS["universal"], 8, 10
FOLDERS = {"osbp": "openset_domain_adaptation", "pada": "partial_domain_adaptation", "iwan": "partial_domain_adaptation"}

#: Office-31, A to W: epochs x iterations of the script or its command, and what its parser and command give.
COMMANDS = {
    "dann": (20 * 1000, dict(lr=0.01, lr_gamma=0.001, wd=1e-3, trade_off=1.0)),
    "cdan": (20 * 1000, dict(lr=0.01, lr_gamma=0.001, wd=1e-3, trade_off=1.0)),
    "mdd": (20 * 1000, dict(lr=0.004, lr_gamma=0.0002, wd=5e-4, trade_off=1.0)),
    "dan": (20 * 500, dict(lr=0.003, lr_gamma=0.0003, wd=5e-4, trade_off=1.0)),
    "jan": (20 * 500, dict(lr=0.003, lr_gamma=0.0003, wd=5e-4, trade_off=1.0)),
    "mcc": (20 * 500, dict(lr=0.005, lr_gamma=0.001, wd=1e-3, trade_off=1.0)),
    "osbp": (20 * 500, dict(lr=0.001, lr_gamma=0.0003, wd=5e-4)),
    "pada": (20 * 1000, dict(lr=0.002, lr_gamma=0.001, wd=1e-3, trade_off=1.0)),
    "iwan": (10 * 1000, dict(lr=0.0003, lr_gamma=0.001, wd=1e-3, trade_off=3.0, gamma=0.1)),
    "afn": (20 * 500, dict(lr=0.001, wd=5e-4, trade_off_norm=0.05, trade_off_entropy=0.1)),
    "mcd": (20 * 500, dict(lr=0.001, trade_off=10.0, trade_off_entropy=0.01, num_k=4)),
}


@pytest.fixture(autouse=True)
def float64():
    """In float32 a difference of 1e-7 grows to 4e-4 within ten iterations, at the kinks of ReLU and of MCD's distance."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def script(name, monkeypatch):
    """tllib's example script as a module; its helpers for data and files are not needed by ``train()``."""
    monkeypatch.setitem(sys.modules, "utils", ModuleType("utils"))
    for part in ("data", "metric", "meter", "logger", "analysis"):
        tllib(f"utils.{part}")  # imported here, with what tllib needs and is missing
    file = EXAMPLES / FOLDERS.get(name, "image_classification") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"tllib_script_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "device", torch.device("cpu"))
    train = module.train

    def seeded(*args):
        torch.manual_seed(1)  # the dropout masks of both loops
        train(*args)

    module.train = seeded
    return module


def batches():
    g = torch.Generator().manual_seed(7)
    for _ in range(ITERATIONS):
        y = torch.randint(SPLIT.num_source, (BATCH,), generator=g)
        yield torch.randn(BATCH, IN, generator=g), y, torch.randn(BATCH, IN, generator=g)


def theirs(name, method, module, args):
    """Their classifier with our initial weights, their losses and optimiser as in the script's ``main``."""
    net, split = copy.deepcopy(method.backbone), method.split
    data = list(batches())
    source, target = iter([(s, y) for s, y, _ in data]), iter([(t, torch.zeros(BATCH).long()) for _, _, t in data])
    if name == "mcd":
        f1, f2 = copy.deepcopy(method.heads)
        opt_g = SGD(net.parameters(), lr=args.lr, weight_decay=0.0005)
        heads = [{"params": f1.parameters()}, {"params": f2.parameters()}]
        opt_f = SGD(heads, momentum=0.9, lr=args.lr, weight_decay=0.0005)
        module.train(source, target, net, f1, f2, opt_g, opt_f, 0, args)
        return nn.ModuleDict({"backbone": net, "heads": nn.ModuleList([f1, f2])})
    kind = tllib("reweight.iwan" if name == "iwan" else "alignment.dann" if name == "pada" else method.part).ImageClassifier
    outputs, width = method.net.head.out_features if name != "mdd" else split.num_source, method.hparams.bottleneck
    model = kind(net, outputs, bottleneck_dim=width, pool_layer=nn.Identity())
    missing = model.load_state_dict(method.net.state_dict(), strict=False)
    assert not missing.unexpected_keys and all(key.startswith("backbone.") for key in missing.missing_keys)
    dann = tllib("alignment.dann").DomainAdversarialLoss
    first = copy.deepcopy(getattr(getattr(method, "loss", None), "domain_discriminator", None))
    losses, adversaries = [copy.deepcopy(getattr(method, "loss", None))], [first] if first is not None else []
    if name == "cdan":
        losses = [tllib("alignment.cdan").ConditionalDomainAdversarialLoss(first)]
    elif name in ("dann", "pada"):
        losses = [dann(first)]
    elif name == "iwan":
        adversaries = [copy.deepcopy(part.domain_discriminator) for part in (method.first, method.second)]
        weigh = tllib("reweight.iwan").ImportanceWeightModule(adversaries[0], [0])
        losses = [*(dann(d) for d in adversaries), weigh]
    if name == "pada":
        weigh = tllib("reweight.pada").AutomaticUpdateClassWeightModule
        losses.append(weigh(500, None, model, split.num_source, torch.device("cpu"), 0.1, [0]))
    groups = model.get_parameters() + [group for d in adversaries for group in d.get_parameters()]
    if name == "afn":
        module.train(source, target, model, *losses, SGD(groups, args.lr, weight_decay=args.wd), 0, args)
    else:
        optimiser = SGD(groups, args.lr, momentum=0.9, weight_decay=args.wd, nesterov=True)
        decay = LambdaLR(optimiser, lambda x: args.lr * (1.0 + args.lr_gamma * float(x)) ** -0.75)
        module.train(source, target, model, *losses, optimiser, decay, 0, args)
    net_only = {key: value for key, value in model.state_dict().items() if not key.startswith("backbone.")}
    return nn.ModuleDict({"backbone": net}), net_only, adversaries


@pytest.mark.parametrize("name", COMMANDS)
def test_ten_iterations_equal_tllibs_own_loop(name, monkeypatch):
    steps, settings = COMMANDS[name]
    args = Namespace(iters_per_epoch=ITERATIONS, print_freq=100, **settings)
    module = script(name, monkeypatch)
    cls = METHODS.get(f"tllib:{name}")
    torch.manual_seed(0)
    method = cls(Tiny(), SPLIT, cls.configure("code", {}))
    method.prepare(Context(steps, 21, 21))
    method.train()
    other = theirs(name, method, module, args)

    torch.manual_seed(1)
    play = SGDPlayers(method.players(), lr=0.5, total_steps=steps, schedule=method.lr_factor)  # 0.5: the preset replaces it
    before = {key: value.clone() for key, value in method.state_dict().items()}
    for step, (s, y, t) in enumerate(batches()):
        play.begin(step)
        index = torch.arange(BATCH)
        method.update(Batch(s, y, index), Batch(t, None, index), step, play)
    if name == "mcd":
        expected = other.state_dict()
    else:
        parts, net, adversaries = other
        expected = {**parts.state_dict(), **{f"net.{key}": value for key, value in net.items()}}
        prefixes = ("first.", "second.") if name == "iwan" else ("loss.",)
        for prefix, adversary in zip(prefixes, adversaries):
            expected.update({f"{prefix}domain_discriminator.{key}": v for key, v in adversary.state_dict().items()})
    ours = method.state_dict()
    assert {key for key, _ in method.named_parameters()} <= set(expected)
    moved = max(float((ours[key] - before[key]).abs().max()) for key, _ in method.named_parameters())
    worst = max(float((ours[key].double() - value.double()).abs().max()) for key, value in expected.items() if key in ours)
    print(f"{name}: moved {moved:.2e}, apart {worst:.2e}")
    assert worst < 1e-12 < 1e-5 < moved
