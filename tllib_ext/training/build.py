"""From a configuration to the parts of a run: data, views, backbone, method."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import List, Optional, Tuple, cast

import torch
from torch import nn
from tqdm import tqdm

from tllib_ext.distributed import gather_objects, rank, world_size
from tllib_ext.errors import UserError, one_line
from tllib_ext.io import cache_dir
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Method
from tllib_ext.modules.batchnorm import fix_statistics
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.modules.synced_batchnorm import convert_sync_batchnorm
from tllib_ext.training.compile import compile_network
from tllib_ext.training.config import RunConfig
from tllib_ext.training.device import pick_device
from tllib_ext.training.domain import Domain
from tllib_ext.training.frozen import (
    RAM_LIMIT,
    frozen_features,
    frozen_part,
    identified_by_files,
    normalisation,
    room_for,
    use_frozen,
)
from tllib_ext.training.memory import accumulate, checkpoint_activations
from tllib_ext.training.objects import NO_OBJECTS, Objects
from tllib_ext.training.resolve import Resolved, parse_hparams, with_batch_that_fits
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.builder import Data
from tllib_ext.vision.datasets.labels_file import GivenLabels
from tllib_ext.vision.datasets.noisy import NoisyLabels, uses_features
from tllib_ext.vision.datasets.open_set import long_tail
from tllib_ext.vision.datasets.pixels import bad_images, open_pixels, without_images
from tllib_ext.vision.datasets.types import ImageView, PixelStore, View
from tllib_ext.vision.datasets.universal import UniversalView
from tllib_ext.vision.models.inputs import check_image_size
from tllib_ext.vision.models.stages import ALL, HEAD
from tllib_ext.vision.transforms import Augment

__all__ = ["RunParts", "build", "make_deterministic"]


@dataclass
class RunParts:
    """Everything a run needs, built and checked.

    Args:
        given (RunConfig): the configuration as the caller made it
        config (RunConfig): the same with every default filled in
        skipped_images (list of str): unreadable images that are left out
        held_out (Domain, optional): source images that are kept back from training
        objects (Objects): data and backbone that the caller passed in place of names
    """

    given: RunConfig
    config: Resolved
    data: Data
    noisy: NoisyLabels
    source: Domain
    target: Domain
    method: Method
    frozen: Optional[nn.Module]
    device: torch.device
    skipped_images: List[str]
    held_out: Optional[Domain] = None
    objects: Objects = NO_OBJECTS

    def record(self) -> Record:
        """What ``config.json`` holds: every setting, and what was found for it in the data."""
        objects = self.objects.record(self.config)
        return {
            **self.config.to_dict(),
            "command": None if objects else self.given.words(),  # no command line names an object
            "skipped_images": self.skipped_images,
            "source_name": self.data.source_name,
            "target_name": self.data.target_name,
            "image": {"resize": self.data.resize, "crop": self.data.crop, "flip": self.data.flip, **normalisation(self.config)},
            "lists": {"source": _digest(self.noisy, self.config.root), "target": _digest(self.target.view, self.config.root)},
            "processes": world_size(),
            "in_features": _width(self.target),
            **({"objects": objects} if objects else {}),
        }

    def model_record(self) -> Record:
        """The part of it that ``model.safetensors`` needs to be used again."""
        keys = ("method", "hparams", "split", "arch", "train_from", "bottleneck_dim", "bottleneck_norm", "image",
                "in_features", "data", "objects")  # fmt: skip
        record = self.record()
        return {key: record[key] for key in keys if key in record}


def _digest(view: View, root: Optional[str]) -> str:
    """Names and given labels of a list, whatever its folder: a run continues only on the list it began with."""
    text = "\n".join(f"{path.removeprefix(root or '')} {label}" for path, label in view.samples)
    return f"{len(view)} {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _width(domain: Domain) -> Optional[int]:
    return None if domain.features is None else domain.features.shape[1]


def make_deterministic() -> None:
    """Only operations that give the same bytes every time; one that cannot is an error. For CUDA: a CPU run is so anyway."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with a workspace of its own
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def build(given: RunConfig, objects: Objects = NO_OBJECTS) -> RunParts:
    """Open the data, draw the noise, build the networks; every error in the settings shows here, before any file.

    Args:
        given (RunConfig): the configuration
        objects (Objects, optional): data and backbone in place of the ones that it would name
    """
    given = objects.named(given)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    if given.deterministic:
        make_deterministic()
    parse_hparams(given)  # an error in them shows before the data is read
    device = pick_device(given.device)
    data = objects.open(given)
    config = given.resolve(data)
    data, skipped = _screen(config, data)
    source_view = UniversalView(data.source, data.split, "source")
    if config.long_tail is not None:
        source_view = long_tail(source_view, config.long_tail, config.noise_seed)
    noisy, kept_back = _draw_noise(config, data, source_view, device, objects), None
    if config.hold_out:
        noisy, kept_back = noisy.hold_out(config.hold_out, config.seed)
    target_view = UniversalView(data.target, data.split, "target")
    if config.answers is not None and config.no_answers:
        raise UserError(f"answers={config.answers} does not go with no_answers=True: choose one of them")
    if config.answers is not None and target_view.targets is None:
        raise UserError(f"answers={config.answers} simulates a person by the labels of {data.target_name}, which has none: train"
                        " without it, then tllib-ext ask asks you")  # fmt: skip
    config = with_batch_that_fits(config, data, {data.source_name: len(noisy), data.target_name: len(target_view)})
    torch.manual_seed(config.seed)
    source, target, backbone, frozen = _inputs(config, data, noisy, target_view, device, objects)
    if config.backbone_norm == "fixed":
        fix_statistics(backbone)
    method = METHODS.get(config.method)(backbone, data.split, parse_hparams(config)).to(device)
    if config.batch_norm == "global" and world_size() > 1:
        convert_sync_batchnorm(method)
    _save_memory(config, method.backbone, trained=not data.is_features and config.train_from != HEAD)
    alone = config.batch_size * (world_size() if config.batch_norm == "global" else 1) == 1
    if alone and not method.training_free and any(isinstance(module, nn.BatchNorm1d) for module in method.modules()):
        raise UserError("batch_size=1: batch normalisation needs at least two samples per batch: choose batch_size=2 or more")
    if config.compile:
        compile_network(method.backbone, device, tqdm.write if rank() == 0 else str)
    held = None
    if kept_back is not None:
        pixels, augment = (None, None) if data.is_features else _images(config, data, kept_back, 0)
        held = Domain(kept_back, device, pixels, augment, train_augment=False)
        if frozen is not None:
            use_frozen(config, data, [(held, f"{data.source_name}, held out")], frozen)
    return RunParts(given, config, data, noisy, source, target, method, frozen, device, skipped, held, objects)


def _save_memory(config: RunConfig, backbone: nn.Module, trained: bool) -> None:
    if not (config.checkpoint_activations or config.accumulate > 1):
        return
    name = "checkpoint_activations=True" if config.checkpoint_activations else f"accumulate={config.accumulate}"
    if not trained:
        raise UserError(f"{name}: there is no backbone to train; leave it out")
    if config.compile:
        raise UserError(f"{name} does not go with compile=True: choose one of them")
    if config.checkpoint_activations:
        checkpoint_activations(backbone)
    accumulate(backbone, config.accumulate)


def _screen(config: RunConfig, data: Data) -> Tuple[Data, List[str]]:
    """``check`` and ``on_bad_image``: open every image of both views, list what cannot be used, stop or leave it out."""
    if data.is_features or not (config.check or config.on_bad_image == "skip"):
        return data, []
    views = [UniversalView(dataset, data.split, role) for dataset, role in ((data.source, "source"), (data.target, "target"))]
    bad, total = [], sum(map(len, views))
    for view in views:
        shares = gather_objects(bad_images(view.paths[rank() :: world_size()], view.loader, config.workers))
        bad += sorted(hit for share in shares for hit in share)
    if rank() == 0:
        for path, reason in bad:
            tqdm.write(one_line(reason if path in reason else f"{path}: {reason}"))
        tqdm.write(f"checked {total} images: {f'{len(bad)} cannot' if bad else 'all can'} be used")
    if bad and config.on_bad_image == "stop":
        remedy = "repair them, or train without them by on_bad_image='skip'"
        raise UserError(f"{len(bad)} of {total} images cannot be used, all listed above: {remedy}")
    skipped = [path for path, _ in bad]
    source, target = (without_images(dataset, skipped) for dataset in (data.source, data.target))
    return replace(data, source=source, target=target), skipped


def _draw_noise(config: Resolved, data: Data, view: UniversalView, device: torch.device, objects: Objects) -> NoisyLabels:
    """The labels of a file, or the noise of the configuration.

    A noise that depends on features gets those of the backbone before training, if a part of that is frozen.
    """
    if config.labels is not None:
        return GivenLabels(view, config.labels, config.labels_column, config.rate)
    features = None
    if config.train_from not in (None, ALL) and uses_features(config.noise):
        torch.manual_seed(config.seed)  # random weights are those of the run
        backbone = objects.network(config)
        frozen = backbone.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
        domain = Domain(view, device, *_images(config, data, view, 0))
        features = frozen_features(config, data, domain, frozen, data.source_name)
    options = config.noise_options
    return NoisyLabels(view, config.noise, config.rate, config.noise_seed, config.noise_mode, options, features)


#: both domains, the network to train and the frozen one under it
Inputs = Tuple[Domain, Domain, nn.Module, Optional[nn.Module]]


def _inputs(
    config: RunConfig, data: Data, noisy: NoisyLabels, target_view: UniversalView, device: torch.device, objects: Objects
) -> Inputs:
    if data.is_features:
        source, target = Domain(noisy, device, show_labels=True), Domain(target_view, device)
        return source, target, _bottleneck(int(noisy.features.shape[1]), config), None
    backbone = objects.network(config)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check_image_size(backbone, data.crop)
    pixels, augment = _images(config, data, noisy, 0)
    source = Domain(noisy, device, pixels, augment, show_labels=True)
    pixels, augment = _images(config, data, target_view, 1)
    target = Domain(target_view, device, pixels, augment, train_augment=config.target_aug == "train")
    if config.train_from == ALL:
        backbone.lr_mult = config.lr_mult_backbone  # type: ignore[assignment]
        return source, target, backbone, None
    frozen, trained = frozen_part(backbone.to(device), str(config.train_from), data.crop)
    use_frozen(config, data, [(source, data.source_name), (target, data.target_name)], frozen)
    if trained is None:
        return source, target, _bottleneck(cast(int, backbone.out_features), config), frozen
    trained.lr_mult = config.lr_mult_backbone  # type: ignore[assignment]
    return source, target, trained, frozen


def _bottleneck(width: int, config: RunConfig) -> FeatureBottleneck:
    return FeatureBottleneck(width, config.bottleneck_dim, config.bottleneck_norm, config.bottleneck_lr_mult)


def _images(config: RunConfig, data: Data, view: ImageView, number: int) -> Tuple[PixelStore, Augment]:
    folder = cache_dir() / "pixels"
    mode = _cache_mode(config, (len(data.source) + len(data.target)) * data.resize**2 * 3, folder)
    name = (data.source_name, data.target_name)[number]
    pixels = open_pixels(view, data.resize, mode, config.workers, f"decode {name}", folder)
    return pixels, Augment(data.crop, data.flip, config.seed, number, **normalisation(config))


def _cache_mode(config: RunConfig, size: int, folder: Path) -> str:
    if config.train_from not in (HEAD, ALL):  # what the frozen part makes of them is kept
        return "off"
    if not identified_by_files(config):
        return "ram" if config.train_from == ALL and size < RAM_LIMIT and world_size() == 1 else "off"
    if config.cache != "auto":
        return config.cache
    if config.train_from == HEAD:  # every image is looked at once
        return "off"
    if size < RAM_LIMIT and world_size() == 1:
        return "ram"
    return "disk" if room_for(size, folder) else "off"
