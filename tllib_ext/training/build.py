"""From flags to the parts of a run: data, views, backbone, method."""

import argparse
import hashlib
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from tllib_ext.cpu.suit import suit_cpu
from tllib_ext.distributed import gather_objects, rank, world_size
from tllib_ext.errors import UserError, one_line
from tllib_ext.io import cache_dir, file_lock
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Method
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.modules.synced_batchnorm import convert_sync_batchnorm
from tllib_ext.training.compile import compile_network
from tllib_ext.training.domain import Domain
from tllib_ext.training.predict import features_of
from tllib_ext.vision.datasets.builder import Data
from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.datasets.check import bad_images, without_images
from tllib_ext.vision.datasets.frozen import files_digest, read_cached, state_digest, write_cached
from tllib_ext.vision.datasets.noisy import NoisyLabels
from tllib_ext.vision.datasets.pixels import open_pixels
from tllib_ext.vision.datasets.sampling import ShuffledBatches
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.transforms import Augment

__all__ = ["RunParts", "build", "make_deterministic", "method_class", "method_options", "parse_hparams", "pick_device"]

#: ``--cache auto`` keeps decoded images in memory below the first size, on disk below the second.
RAM_LIMIT, DISK_LIMIT = 1 << 30, 16 << 30


@dataclass
class RunParts:
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
            "lists": {"source": _digest(self.noisy, self.args.root), "target": _digest(self.target.view, self.args.root)},
            "processes": world_size(),
            "in_features": None if self.frozen is None and not self.data.is_features else _width(self.target),
        }

    def about_model(self) -> Dict[str, Any]:
        """What of it ``model.safetensors`` needs to be used again."""
        config = self.config()
        keys = ("method", "hparams", "split", "arch", "freeze_backbone", "bottleneck", "bottleneck_norm", "image",
                "in_features", "data")  # fmt: skip
        return {key: config[key] for key in keys}

    def close(self) -> None:
        """End the processes that decode images."""
        self.source.close()
        self.target.close()


def _digest(view: Any, root: Optional[str]) -> str:
    """Names and given labels of a list, wherever it stands: a run goes on only over the one it began with."""
    text = "\n".join(f"{path.removeprefix(root or '')} {label}" for path, label in view.samples)
    return f"{len(view)} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


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


def make_deterministic() -> None:
    """Only operations that give the same bytes every time; one that cannot is an error. For CUDA: a CPU run is so anyway."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with a workspace of its own
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def method_class(name: str) -> type:
    """The class of a method by its registered name."""
    return METHODS.get(name)


def method_options(args: argparse.Namespace) -> Dict[str, Any]:
    """Hyper-parameters given by flags: ``--hp`` and its few shorthands."""
    values: Dict[str, Any] = {}
    for item in args.hp:
        name, found, value = item.partition("=")
        if not found:
            raise UserError(f"--hp {item!r}: expected NAME=VALUE, e.g. eta=0.1")
        values[name] = value
    shorthands: List[str] = ["drop_rate", "heads", "unknown_rule", "unknown_threshold"]
    values.update({name: getattr(args, name) for name in shorthands if getattr(args, name) is not None})
    return values


def parse_hparams(cls: Any, preset: Optional[str], options: Dict[str, Any]) -> Any:
    """Preset first, then flags on top."""
    return cls.configure(preset, options)


def build(args: argparse.Namespace) -> RunParts:
    """Open the data, draw the noise, build the networks; every error in the flags shows here, before any file."""
    cls = method_class(args.method)
    hparams = parse_hparams(cls, args.preset, method_options(args))
    device = pick_device(args.device)
    data = open_data(args.root, args.data, args.source, args.target, args.split, args.download, args.allow_outside)
    _fill_defaults(args, data)
    _screen(args, data)
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
    if args.batch_norm == "global":
        convert_sync_batchnorm(method)
    if device.type == "cpu":
        suit_cpu(method.backbone)
    if args.compile:
        compile_network(method.backbone, device, tqdm.write if rank() == 0 else str)
    return RunParts(args, data, noisy, source, target, method, frozen, device)


def _screen(args: argparse.Namespace, data: Data) -> None:
    """``--check`` and ``--on-bad-image``: open every image of both views, list what cannot be used, stop or leave it out."""
    args.skipped_images = []
    if data.is_features or not (args.check or args.on_bad_image == "skip"):
        return
    views = [UniversalView(dataset, data.split, role) for dataset, role in ((data.source, "source"), (data.target, "target"))]
    bad, total = [], sum(map(len, views))
    for view in views:
        shares = gather_objects(bad_images(view.paths[rank() :: world_size()], view.loader, args.workers))
        bad += sorted(hit for share in shares for hit in share)
    if rank() == 0:
        for path, reason in bad:
            tqdm.write(one_line(reason if path in reason else f"{path}: {reason}"))
        tqdm.write(f"checked {total} images: {f'{len(bad)} cannot' if bad else 'all can'} be used")
    if bad and args.on_bad_image == "stop":
        remedy = "mend them, or train without them by --on-bad-image skip"
        raise UserError(f"{len(bad)} of {total} images cannot be used, all listed above: {remedy}")
    args.skipped_images = [path for path, _ in bad]
    data.source, data.target = (without_images(dataset, args.skipped_images) for dataset in (data.source, data.target))


def _fill_defaults(args: argparse.Namespace, data: Data) -> None:
    glyphs = data.name == "Glyphs"
    frozen = data.is_features or args.freeze_backbone
    args.data, args.source, args.target = data.name, data.source_name, data.target_name
    args.split = str(data.split)
    args.batch_norm = args.batch_norm if world_size() > 1 else None  # one process has all samples anyway
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


def _inputs(args: argparse.Namespace, data: Data, noisy: NoisyLabels, target_view: UniversalView, device: torch.device) -> Any:
    if data.is_features:
        source, target = Domain(noisy, device, show_labels=True), Domain(target_view, device)
        return source, target, FeatureBottleneck(_width(source), args.bottleneck, args.bottleneck_norm), None
    backbone = build_backbone(args.arch, args.weights, args.download)
    source = Domain(noisy, device, *_images(args, data, noisy, 0), show_labels=True)
    target = Domain(target_view, device, *_images(args, data, target_view, 1), train_augment=args.target_aug == "train")
    if not args.freeze_backbone:
        return source, target, backbone.to(memory_format=torch.channels_last), None
    frozen = backbone.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)
    digest, folder = state_digest(frozen), cache_dir() / "features"
    for domain, name in ((source, data.source_name), (target, data.target_name)):
        contents = files_digest(domain.view.paths, folder, args.workers)
        key = f"features 2 {args.arch} {digest} {data.resize} {data.crop} {contents}"
        features = _extract(folder, key, frozen, domain, f"features of {name}")
        domain.use_features(torch.from_numpy(features))
    return source, target, FeatureBottleneck(frozen.out_features, args.bottleneck, args.bottleneck_norm), frozen


def _extract(folder: Path, key: str, frozen: nn.Module, domain: Domain, title: str) -> np.ndarray:
    features = read_cached(folder, key)
    if all(gather_objects(features is not None)):  # without a lock: the cache may be on a read-only disk
        return features
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    # The first of another run's processes that need the same features makes them, the others wait and find them.
    with file_lock(cache_dir() / "locks" / name) if rank() == 0 else nullcontext():
        gather_objects(None)
        features = read_cached(folder, key)
        # Extraction is shared out among the processes: all take part, even if some of them have the file.
        if not all(found is not None for found in gather_objects(None if features is None else True)):
            features = features_of(frozen, domain, 64, title).numpy()
            if rank() == 0:
                write_cached(folder, key, features)
    return features


def _images(args: argparse.Namespace, data: Data, view: Any, number: int) -> Any:
    folder = cache_dir() / "pixels"
    mode = _cache_mode(args, (len(data.source) + len(data.target)) * data.resize**2 * 3, folder)
    name = (data.source_name, data.target_name)[number]
    pixels = open_pixels(view, data.resize, mode, args.workers, f"decode {name}", folder)
    return pixels, Augment(data.crop, data.flip, args.seed, number)


def _cache_mode(args: argparse.Namespace, size: int, folder: Path) -> str:
    if args.cache != "auto":
        return args.cache
    if args.freeze_backbone:  # every image is looked at once
        return "off"
    if size < RAM_LIMIT and world_size() == 1:
        return "ram"
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return "disk" if size < min(DISK_LIMIT, shutil.disk_usage(place).free // 4) else "off"
