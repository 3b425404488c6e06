"""From images to the files of frozen features that ``data="features"`` reads."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple, Union, cast

import numpy as np
import torch
from torch import nn

from tllib_ext import errors
from tllib_ext.errors import UserError
from tllib_ext.images import load_image
from tllib_ext.io import atomic_path
from tllib_ext.split import LabelSplit
from tllib_ext.training.config import RunConfig
from tllib_ext.training.device import pick_device
from tllib_ext.training.domain import Domain
from tllib_ext.training.frozen import frozen_features
from tllib_ext.training.inputs import fetch_inputs
from tllib_ext.training.predict import features_of
from tllib_ext.training.resolve import with_image_size
from tllib_ext.training.saved_run import load_run
from tllib_ext.typing import PathLike
from tllib_ext.vision.datasets.builder import Data, DataRequest, DatasetBuilder
from tllib_ext.vision.datasets.catalog import recognise
from tllib_ext.vision.datasets.folders import FolderData
from tllib_ext.vision.datasets.given import as_image_list
from tllib_ext.vision.datasets.imagelist import ImageFolder
from tllib_ext.vision.datasets.own import dataset_builder
from tllib_ext.vision.datasets.pixels import LazyPixels
from tllib_ext.vision.datasets.types import ImageListLike
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.given import GivenBackbone
from tllib_ext.vision.models.inputs import check_image_size, image_input, resize_before_crop
from tllib_ext.vision.transforms import Augment

__all__ = ["Arrays", "extract_features", "image_features", "write_features"]


#: of a domain by itself, whose label sets play no part
_ANY_SPLIT = LabelSplit(("first", "second"))


class _Images:
    """All images of a list, as a domain needs them."""

    features = targets = None

    def __init__(self, dataset: ImageListLike):
        self.loader, self.paths = dataset.loader, [path for path, _ in dataset.samples]

    def path(self, index: int) -> str:
        """The file of one image."""
        return self.paths[index]

    def __len__(self) -> int:
        return len(self.paths)


class _Network(NamedTuple):
    """A network that makes features, and the images that it takes."""

    module: nn.Module
    name: str
    mean: Sequence[float]
    std: Sequence[float]
    sizes: Optional[Tuple[int, int]] = None  # of the crop, and of the whole image; None: by the configuration


def write_features(
    config: RunConfig,
    out: PathLike,
    overwrite: bool = False,
    say: Callable[[str], object] = errors.say,
    run: Optional[PathLike] = None,
) -> List[Path]:
    """Write ``out/<domain>.npz`` for every domain of a data folder: features of the centre crop, labels, classes, paths.

    Args:
        config (RunConfig): ``root``, ``data``, ``arch``, ``weights``, ``image_size``, ``device``, ``workers``
        out (str): folder, made if it is absent
        overwrite (bool): replace files that exist
        say (callable): prints a line per domain
        run (str, optional): folder of a finished run on images, whose trained network makes the features, in place of ``arch``

    Returns:
        the files
    """
    name = recognise(config.root) if config.data == "auto" else config.data
    builder = dataset_builder(name)
    if name == "features" or not isinstance(builder, DatasetBuilder):
        raise UserError(f"data={name!r}: expected a folder of images whose domains are known")
    fetch_inputs(config, task=False)
    request = DataRequest(name, config.root, allow_outside=config.allow_outside)
    root = builder.folder(config.root, name, config.download)
    root, domains = _domains(builder, root)
    files = [Path(out) / f"{domain}.npz" for domain in domains]
    present = [file for file in files if file.exists()]
    if present and not overwrite:
        raise UserError(f"{present[0]} exists: choose another folder, or replace it by overwrite=True")
    opened = [_open(builder, root, domain, domains, request) for domain in domains]
    for note in dict.fromkeys(note for data in opened for note in data.notes):  # files that are passed over
        say(note)
    network = _backbone(config) if run is None else _of_run(run, config)
    Path(out).mkdir(parents=True, exist_ok=True)
    for domain, file, data in zip(domains, files, opened):
        data = with_image_size(data, config.image_size, config.arch or "resnet50")
        crop, resize = network.sizes or (data.crop, data.resize)
        images = _Images(data.target)
        features = _extract(network, images, crop, resize, config, domain)
        labels = [label for _, label in data.target.samples]
        arrays = {"features": features, "classes": np.array(data.target.classes, dtype=str),
                  "paths": np.array([os.path.relpath(path, root) for path in images.paths])}  # fmt: skip
        if None not in labels:
            arrays["labels"] = np.array(cast(List[int], labels), dtype=np.int64)
        with atomic_path(file) as draft, open(draft, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        size = f"{crop} x {crop} of {resize} x {resize} pixels"
        say(f"{file}: {len(images)} images, {features.shape[1]} features of {network.name} at {size}")
    return files


class Arrays(NamedTuple):
    """Features :math:`(N, D)` and the names of the classes of their images, None for an unlabelled list."""

    X: np.ndarray
    y: Optional[np.ndarray]


def extract_features(
    images: object, backbone: Union[str, nn.Module] = "resnet50", *, image_size: Optional[int] = None, batch_size: int = 64,
    workers: int = 2, device: str = "auto",
) -> Arrays:  # fmt: skip
    """The arrays that :class:`~tllib_ext.estimator.NoisyUniDA` takes, of any list of images and any backbone.

    Args:
        images: a list with ``samples``, ``classes`` and ``loader`` (tllib's ``ImageList``, torchvision's ``ImageFolder``), or
            an array of images :math:`(N, H, W, 3)` uint8, alone or with labels, ``(X, y)``
        backbone (str or torch.nn.Module, optional): a name, with its default weights, or a module with ``out_features``.
            Default: "resnet50"
        image_size (int, optional): side of the centre crops that the network sees. Default: the backbone's
        batch_size (int), workers (int), device (str): images at a time, threads that decode, where the network runs

    Examples::

        >>> images = np.zeros((3, 32, 32, 3), np.uint8)
        >>> X, y = extract_features((images, ["owl", "cat", "owl"]), "small_cnn", image_size=32, device="cpu")
        >>> X.shape, y.tolist()
        ((3, 128), ['owl', 'cat', 'owl'])
    """
    dataset = as_image_list(images, "list")
    if getattr(dataset, "features", None) is not None:
        raise UserError("these are features already: pass them to the estimator as they are")
    config = RunConfig(arch=backbone if isinstance(backbone, str) else None, image_size=image_size, batch_size=batch_size,
                       workers=workers, device=device)  # fmt: skip
    network = None if isinstance(backbone, str) else GivenBackbone(backbone)
    labels = [label for _, label in dataset.samples]
    names = None if None in labels else np.array([str(dataset.classes[cast(int, label)]) for label in labels])
    return Arrays(image_features(dataset, config, network), names)


def image_features(dataset: ImageListLike, config: RunConfig, given: Optional[GivenBackbone] = None) -> np.ndarray:
    """Features of all images of a list by the frozen backbone of ``config``, or a given one, :math:`(N, D)`."""
    side = config.image_size or (given and given.input_size) or image_input(config.arch or "resnet50").size
    if given is None:
        network = _backbone(config)
    else:
        given.check(side)
        moved = given.to(pick_device(config.device), memory_format=torch.channels_last)  # type: ignore[call-overload]
        network = _Network(moved.eval(), "the given backbone", *image_input(None)[1:])
    return _extract(network, _Images(dataset), side, resize_before_crop(side), config, "images")


def _backbone(config: RunConfig) -> _Network:
    torch.manual_seed(config.seed)
    arch = config.arch or "resnet50"
    backbone = build_backbone(arch, "none" if config.scratch else config.weights, config.download)
    backbone.to(pick_device(config.device), memory_format=torch.channels_last)  # type: ignore[call-overload]
    expected = image_input(arch)
    return _Network(backbone.eval(), arch, expected.mean, expected.std)


def _of_run(folder: PathLike, config: RunConfig) -> _Network:
    if config.arch or config.image_size or config.weights != RunConfig.weights or config.scratch:
        raise UserError("the network of a run has its own weights and image size: leave out arch, weights and image_size")
    run = load_run(os.fspath(folder), pick_device(config.device))
    return _Network(run.features(), f"the run {folder}", run.mean, run.std, (run.crop, run.resize))


class _Square(NamedTuple):
    resize: int
    crop: int


def _extract(network: _Network, images: _Images, crop: int, resize: int, config: RunConfig, title: str) -> np.ndarray:
    """Features of the centre crops; of a backbone by name from the cache that runs with a frozen backbone use too."""
    check_image_size(network.module, crop)
    augment = Augment(crop, mean=network.mean, std=network.std)
    domain = Domain(images, pick_device(config.device), LazyPixels(images, resize, config.workers), augment)
    if network.name in BACKBONES and images.loader is load_image:  # another loader may make anything of a file
        config, frozen = replace(config, arch=network.name), network.module.requires_grad_(False)
        return frozen_features(config, _Square(resize, crop), domain, frozen, title)
    return features_of(network.module, domain, config.batch_size, title).numpy()


def _domains(builder: DatasetBuilder, root: str) -> Tuple[str, Sequence[str]]:
    """The folder of the domains and their names; a folder of class folders, or of images alone, is one domain itself."""
    if isinstance(builder, FolderData):
        folders = sorted(entry.path for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))
        if not any(entry.is_dir() for folder in folders for entry in os.scandir(folder)):  # classes, not domains
            parent, name = os.path.split(os.path.abspath(root))
            return parent, [name]
        if len(folders) == 1:
            return root, [os.path.basename(folders[0])]
    return root, builder.domains(root)


def _open(builder: DatasetBuilder, root: str, domain: str, domains: Sequence[str], request: DataRequest) -> Data:
    """The data with ``domain`` as its target; the source is any that can be one, ``domain`` itself if it is labelled."""
    if isinstance(builder, FolderData):  # which may be a single domain, or an unlabelled one
        images = ImageFolder(os.path.join(root, domain))
        return Data(request.name, domain, domain, images, images, _ANY_SPLIT, notes=[images.note] if images.note else [])
    problem: Optional[UserError] = None
    for source in (domain, *domains):
        try:
            return builder.open(root, source, domain, request)
        except UserError as error:
            problem = problem or error
    raise problem or UserError(f"{root} holds no domain")
