"""Defaults that depend on the data and the method of a run."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Dict, Optional, cast

from tqdm import tqdm

from tllib_ext.distributed import rank, world_size
from tllib_ext.errors import UserError
from tllib_ext.methods import METHODS
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.builder import Data
from tllib_ext.vision.datasets.catalog import open_data
from tllib_ext.vision.datasets.sampling import ShuffledBatches
from tllib_ext.vision.models.inputs import image_input, resize_before_crop

__all__ = ["OF_TRAINING", "Resolved", "idle_settings", "resolve", "open_run_data", "with_batch_that_fits", "with_image_size",
           "parse_hparams"]  # fmt: skip

#: settings that mean nothing to a method without training.
OF_TRAINING = ("lr", "lr_mult_backbone", "lr_warmup", "momentum", "weight_decay", "accumulate", "bottleneck_dim",
                "bottleneck_norm", "bottleneck_lr_mult")  # fmt: skip

if TYPE_CHECKING:

    class Resolved(RunConfig):
        """A configuration without open defaults, for the type checker."""

        source: str
        target: str
        split: LabelSplit
        noise: str
        preset: str
        steps: int
        eval_every: int
        checkpoint_every: int
else:
    Resolved = RunConfig


def open_run_data(config: RunConfig) -> Data:
    """Open both domains of a run; no image is decoded yet."""
    text = config.split if isinstance(config.split, str) else None
    data = open_data(
        config.root, config.data, config.source, config.target, text, config.download, config.allow_outside,
        config.target_unlabelled,
    )  # fmt: skip
    if isinstance(config.split, LabelSplit):
        data = replace(data, split=config.split)
    return data if data.is_features else with_image_size(data, config.image_size, config.arch)


def with_image_size(data: Data, size: Optional[int], arch: Optional[str]) -> Data:
    """``data`` with images of the given size, else of the backbone's unless the data has a size of its own."""
    if size is None and data.crop == Data.crop:
        size = image_input(arch).size
    return data if size in (None, data.crop) else replace(data, crop=size, resize=resize_before_crop(size))


def with_batch_that_fits(config: Resolved, data: Data, sizes: Dict[str, int]) -> Resolved:
    """``config``, of own folders with a batch that the smaller domain can fill; any other data must fill the given one."""
    least = min(sizes.values()) // world_size()
    if data.name == "folder" and 0 < least < config.batch_size:
        if rank() == 0:
            few = " and ".join(f"{name} has {size} images" for name, size in sizes.items() if size // world_size() == least)
            tqdm.write(f"batches of {least} in place of {config.batch_size}: {few}")
        config = replace(config, batch_size=least)
    for name, size in sizes.items():
        try:
            ShuffledBatches(size, config.batch_size * world_size())
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    return config


def parse_hparams(config: RunConfig) -> Any:
    """The hyper-parameters of the configured method: its preset, with the given ones on top."""
    return METHODS.get(config.method).configure(config.preset, config.method_options())


def idle_settings(config: RunConfig) -> Record:
    """Name and default of the given settings that a method without training would ignore."""
    defaults = {name: getattr(RunConfig, name) for name in OF_TRAINING}
    return {name: value for name, value in defaults.items() if getattr(config, name) != value}


def resolve(config: RunConfig, data: Optional[Data] = None) -> Resolved:
    """What :meth:`RunConfig.resolve` returns: a new configuration with every default filled in."""
    hparams = parse_hparams(config)
    data = data if data is not None else open_run_data(config)
    glyphs, is_features = data.name == "Glyphs", data.is_features
    if is_features and (config.freeze_backbone or config.train_from or config.arch or config.image_size):
        raise UserError("data='features' has no backbone and no images: leave out arch, train_from and image_size")
    if config.freeze_backbone and config.train_from not in (None, "head"):
        raise UserError(f"train_from={config.train_from!r}: freeze_backbone is train_from='head'; leave one of them out")
    train_from = None if is_features else config.train_from or ("head" if config.freeze_backbone else "all")
    if config.backbone_norm is not None and train_from in (None, "head"):
        raise UserError(f"backbone_norm={config.backbone_norm!r}: no part of a backbone is trained; leave it out")
    if config.views > 1 and train_from in (None, "head", "all"):
        raise UserError(f"views={config.views}: views are kept below a stage of the backbone; give train_from, e.g. layer4")
    if config.labels is not None and config.noise not in (None, "none"):
        raise UserError(f"labels={config.labels!r} are used as they are: leave out noise={config.noise!r}")
    if config.labels_column is not None and config.labels is None:
        raise UserError(f"labels_column={config.labels_column!r}: give the file with it (labels)")
    if config.labels_by != "given" and METHODS.get(config.method).estimates_labels:
        raise UserError(f"labels_by={config.labels_by!r}: {config.method} estimates the labels itself; leave out labels_by")
    by_stage = {None: 1000, "head": 1000, "all": 5001}
    steps = config.steps or (300 if glyphs else by_stage.get(train_from, METHODS.get(config.method).stage_steps))
    if METHODS.get(config.method).training_free:
        if config.steps not in (None, 1):  # 1 is what a resolved configuration holds
            raise UserError(f"steps={config.steps}: {config.method} is not trained; leave out steps")
        for name in idle_settings(config):
            raise UserError(f"{name}={getattr(config, name)}: {config.method} is not trained; leave out {name}")
        steps = 1
    whole = replace(
        config,
        data=data.name,
        source=data.source_name,
        target=data.target_name,
        split=data.split,
        image_size=None if is_features or (glyphs and config.image_size is None) else data.crop,
        noise=config.noise or ("pair" if glyphs and config.labels is None else "none"),
        preset=config.preset or next(iter(METHODS.get(config.method).presets)),
        hparams=asdict(hparams),
        arch=None if is_features else config.arch or ("small_cnn" if glyphs else "resnet50"),
        weights="none" if config.scratch and not is_features else config.weights,
        train_from=train_from,
        freeze_backbone=train_from == "head",
        backbone_norm=config.backbone_norm or {None: None, "head": None, "all": "batch"}.get(train_from, "fixed"),
        steps=steps,
        # One process has all samples of a batch: both kinds are the same.
        batch_norm=config.batch_norm if world_size() > 1 else "global",
        eval_every=config.eval_every or max(1, steps // 10),
        checkpoint_every=config.checkpoint_every or max(1, steps // 10),
    )
    return cast(Resolved, whole)
