"""From flags to the parts of a run: data, views, backbone, method."""

import argparse
from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional

import numpy as np
import torch
from torch import nn

from tllib_ext.cli import method_options
from tllib_ext.errors import UserError, closest
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Method
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.training.distributed import gather_objects, rank, world_size
from tllib_ext.training.domain import Domain
from tllib_ext.training.predict import features_of
from tllib_ext.vision.datasets.catalog import Data, cache_dir, open_data
from tllib_ext.vision.datasets.frozen import files_digest, read_cached, state_digest, write_cached
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.pixels import open_pixels
from tllib_ext.vision.datasets.sampling import ShuffledBatches
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.transforms import Augment

__all__ = ["Parts", "build", "method_class", "parse_hparams", "pick_device"]

#: decoded images are kept in memory by ``--cache auto`` below this size.
RAM_LIMIT = 1 << 30


@dataclass
class Parts:
    """Everything a run needs, built and checked; ``args`` has every default filled in."""

    args: argparse.Namespace
    data: Data
    noisy: NoisyLabels
    source: Domain
    target: Domain
    method: Method
    frozen: Optional[nn.Module]
    device: torch.device

    def config(self) -> Dict[str, Any]:
        """What ``config.json`` holds."""
        flags = {name: value for name, value in vars(self.args).items() if name not in ("list_hp", "config")}
        return {
            **flags,
            "split": self.data.split.to_dict(),
            "hparams": asdict(self.method.hparams),
            "source_name": self.data.source_name,
            "target_name": self.data.target_name,
            "image": {"resize": self.data.resize, "crop": self.data.crop, "flip": self.data.flip},
            "in_features": None if self.frozen is None and not self.data.is_features else _width(self.target),
        }


def _width(domain: Domain) -> int:
    return domain.features.shape[1]


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA, then MPS, then the CPU; a device that is not there is an error."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}; try --device cpu") from None
    return device


def method_class(name: str) -> type:
    """The class of a method by its registered name."""
    return METHODS.get(name)


def parse_hparams(cls: Any, preset: Optional[str], options: Dict[str, Any]) -> Any:
    """Preset first, then flags on top."""
    preset = preset or next(iter(cls.presets))
    if preset not in cls.presets:
        raise UserError(f"unknown preset {preset!r} of {cls.__name__}: {closest(preset, cls.presets)}")
    return cls.Hparams.parse({**cls.presets[preset], **options})


def build(args: argparse.Namespace) -> Parts:
    """Open the data, draw the noise, build the networks; every error in the flags shows here, before any file."""
    cls = method_class(args.method)
    hparams = parse_hparams(cls, args.preset, method_options(args))
    device = pick_device(args.device)
    data = open_data(args.root, args.data, args.source, args.target, args.split, args.download, args.allow_outside)
    _fill_defaults(args, data)
    source_view = UniversalView(data.source, data.split, "source")
    noisy = NoisyLabels(source_view, args.noise, args.rate, args.noise_seed, args.noise_mode)
    target_view = UniversalView(data.target, data.split, "target")
    for name, size in ((data.source_name, len(noisy)), (data.target_name, len(target_view))):
        try:
            ShuffledBatches(size, args.batch_size * world_size())
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    torch.manual_seed(args.seed)
    source, target, backbone, frozen = _inputs(args, data, noisy, target_view, device)
    method = cls(backbone, data.split, hparams).to(device)
    return Parts(args, data, noisy, source, target, method, frozen, device)


def _fill_defaults(args: argparse.Namespace, data: Data) -> None:
    glyphs = data.name == "Glyphs"
    frozen = data.is_features or args.freeze_backbone
    args.data, args.source, args.target = data.name, data.source_name, data.target_name
    args.split = str(data.split)
    args.noise = args.noise or ("pair" if glyphs else "none")
    args.steps = args.steps or (300 if glyphs else 1000 if frozen else 5001)
    args.eval_every = args.eval_every or max(1, args.steps // 10)
    args.checkpoint_every = args.checkpoint_every or max(1, args.steps // 10)
    if data.is_features:
        if args.freeze_backbone or args.arch:
            raise UserError("-d features has no backbone: leave out -a and --freeze-backbone")
    else:
        args.arch = args.arch or ("small_cnn" if glyphs else "resnet50")
        args.weights = "none" if args.scratch else args.weights


def _inputs(
    args: argparse.Namespace, data: Data, noisy: NoisyLabels, target_view: UniversalView, device: torch.device
) -> Any:
    if data.is_features:
        source, target = Domain(noisy, device, show_labels=True), Domain(target_view, device)
        return source, target, FeatureBottleneck(_width(source), args.bottleneck), None
    backbone = build_backbone(args.arch, args.weights, args.download)
    source = Domain(noisy, device, *_images(args, data, noisy, 0), show_labels=True)
    target = Domain(target_view, device, *_images(args, data, target_view, 1), train_augment=args.target_aug == "train")
    if not args.freeze_backbone:
        return source, target, backbone.to(memory_format=torch.channels_last), None
    frozen = backbone.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)
    digest = state_digest(frozen)
    for domain, name in ((source, data.source_name), (target, data.target_name)):
        key = f"features 1 {args.arch} {digest} {data.resize} {data.crop} {files_digest(domain.view.paths)}"
        features = _extract(key, frozen, domain, f"features of {name}")
        domain.use_features(torch.from_numpy(features))
    return source, target, FeatureBottleneck(frozen.out_features, args.bottleneck), frozen


def _extract(key: str, frozen: nn.Module, domain: Domain, title: str) -> np.ndarray:
    folder = cache_dir() / "features"
    features = read_cached(folder, key)
    # Extraction is shared out among the processes: all take part, even if some of them have the file.
    if not all(found is not None for found in gather_objects(None if features is None else True)):
        features = features_of(frozen, domain, 64, title).numpy()
        if rank() == 0:
            write_cached(folder, key, features)
    return features


def _images(args: argparse.Namespace, data: Data, view: Any, number: int) -> Any:
    size = (len(data.source) + len(data.target)) * data.resize**2 * 3
    mode = args.cache
    if mode == "auto":
        mode = "ram" if size < RAM_LIMIT and not args.freeze_backbone else "off"
    name = (data.source_name, data.target_name)[number]
    pixels = open_pixels(view, data.resize, mode, args.workers, f"decode {name}")
    return pixels, Augment(data.crop, data.flip, args.seed, number)
