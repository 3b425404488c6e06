"""The part of a backbone that is not trained: what it makes of every image is computed once and kept."""

import hashlib
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import ContextManager, Dict, Iterator, List, Optional, Protocol, Sequence, Tuple, cast

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from tllib_ext.distributed import gather_objects, rank, world_size
from tllib_ext.errors import UserError, say
from tllib_ext.io import atomic_path, cache_dir, file_lock
from tllib_ext.modules.batchnorm import fix_statistics
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.training.config import RunConfig
from tllib_ext.training.domain import Domain, ahead
from tllib_ext.training.predict import features_of
from tllib_ext.vision.datasets import DATASETS
from tllib_ext.vision.datasets.builder import Data
from tllib_ext.vision.datasets.cache import files_digest, read_cached, state_digest, write_cached
from tllib_ext.vision.datasets.given import OBJECTS
from tllib_ext.vision.datasets.maps import MapFile, StoredMaps
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.given import OBJECT
from tllib_ext.vision.models.inputs import image_input
from tllib_ext.vision.models.stages import ALL, HEAD, Below, cut
from tllib_ext.vision.transforms import MEAN, STD

__all__ = ["FROZEN_BATCH", "RAM_LIMIT", "DISK_LIMIT", "Sizes", "frozen_features", "frozen_part", "identified_by_files",
           "normalisation", "room_for", "trained_part", "use_frozen"]  # fmt: skip

#: ``cache="auto"`` keeps what takes less than the first size in memory, less than the second on disk.
RAM_LIMIT, DISK_LIMIT = 1 << 30, 16 << 30
#: images per forward pass of the frozen part, the same everywhere: the same sums in the same order.
FROZEN_BATCH = 64


class Sizes(Protocol):
    """Sides of the images of a data set."""

    @property
    def resize(self) -> int: ...

    @property
    def crop(self) -> int: ...


def normalisation(config: RunConfig) -> Dict[str, Tuple[float, ...]]:
    """Mean and standard deviation of the channels where they are not ImageNet's, which earlier releases always used."""
    found = image_input(config.arch)
    return {} if (found.mean, found.std) == (MEAN, STD) else {"mean": found.mean, "std": found.std}


def identified_by_files(config: RunConfig) -> bool:
    """Whether the names of the files and of the backbone tell what is computed, so that a cache on disk may keep it.

    Of objects and of code of the user's they do not: a list has a loader of its own, a module its own forward pass.
    """
    own = DATASETS.is_import_path(config.data) or BACKBONES.is_import_path(str(config.arch))
    return config.data != OBJECTS and not str(config.arch).startswith(OBJECT) and not own


def room_for(size: int, folder: Path) -> bool:
    """Whether a file of this size may be kept in ``folder`` without being asked for."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return size < min(DISK_LIMIT, shutil.disk_usage(place).free // 4)


def frozen_part(backbone: nn.Module, stage: str, size: int) -> Tuple[nn.Module, Optional[nn.Module]]:
    """The part of a backbone below ``stage``, in evaluation mode for good, and the rest; all of it and None below ``head``."""
    frozen, rest = (backbone, None) if stage == HEAD else cut(backbone, stage, size)
    return frozen.eval().requires_grad_(False), rest


def trained_part(backbone: nn.Module, stage: str, size: int) -> Tuple[nn.Module, Tuple[int, ...]]:
    """What is trained from ``stage`` on by the defaults of a run, and the shape of its inputs."""
    if stage == ALL:
        return backbone, (3, size, size)
    frozen, rest = frozen_part(backbone, stage, size)
    if rest is None:
        width = cast(int, frozen.out_features)
        return FeatureBottleneck(width, RunConfig.bottleneck_dim), (width,)
    fix_statistics(rest)
    with torch.no_grad():
        return rest, tuple(frozen(torch.zeros(1, 3, size, size)).shape[1:])


def use_frozen(config: RunConfig, data: Data, domains: Sequence[Tuple[Domain, str]], frozen: nn.Module) -> None:
    """From now on the inputs of the domains are what ``frozen`` makes of their images: features, or maps below a stage.

    Args:
        config (RunConfig): ``train_from``, ``views``, ``cache``
        data (Data): sizes of the images
        domains (sequence): each domain with its name
        frozen (torch.nn.Module): of :func:`frozen_part`
    """
    if isinstance(frozen, Below):
        _use_maps(config, data, domains, frozen)
        return
    for domain, name in domains:
        domain.use_features(torch.from_numpy(frozen_features(config, data, domain, frozen, name)))


def frozen_features(config: RunConfig, data: Sizes, domain: Domain, frozen: nn.Module, name: str) -> np.ndarray:
    """Features of the centre crops of a domain by a frozen backbone, from the cache on disk where they are."""
    if not identified_by_files(config):
        return features_of(frozen, domain, FROZEN_BATCH, f"features of {name}").numpy()
    folder = cache_dir() / "features"
    contents = files_digest(domain.view.paths, folder, config.workers)
    key = f"features 2 {config.arch} {state_digest(frozen)} {data.resize} {data.crop} {contents}{normalisation(config) or ''}"
    features, title = read_cached(folder, key), f"features of {name}"
    # Without a lock: the cache may be on a read-only disk.
    if all(gather_objects(features is not None)) and features is not None:
        return features
    # The first of another run's processes that need the same features makes them, the others wait and find them.
    with _lock(key):
        gather_objects(None)
        features = read_cached(folder, key)
        # Extraction is shared out among the processes: all take part, even if some of them have the file.
        if not all(gather_objects(features is not None)) or features is None:
            features = features_of(frozen, domain, FROZEN_BATCH, title).numpy()
            if rank() == 0:
                write_cached(folder, key, features)
    return features


def _lock(key: str) -> ContextManager[None]:
    return file_lock(cache_dir() / "locks" / _hash(key)) if rank() == 0 else nullcontext()


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _use_maps(config: RunConfig, data: Data, domains: Sequence[Tuple[Domain, str]], below: Below) -> None:
    device = next(below.parameters()).device if any(True for _ in below.parameters()) else torch.device("cpu")
    with torch.no_grad():
        blank = below(torch.zeros(1, 3, data.crop, data.crop, device=device))[None].cpu().numpy()
    shape = StoredMaps.layout(blank).shape[2:]
    views = [config.views if domain.train_augment else 1 for domain, _ in domains]
    sizes = [2 * len(domain) * count * int(np.prod(shape)) for (domain, _), count in zip(domains, views)]
    folder = cache_dir() / "maps"
    mode = gather_objects(_mode(config, sum(sizes), folder))[0]
    for (domain, name), count, size in zip(domains, views, sizes):
        if rank() == 0:
            where = {"off": "computed anew in every step", "ram": "kept in memory", "disk": f"kept in {folder}"}[mode]
            each = "x".join(map(str, blank.shape[2:]))
            size_text = f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"
            line = f"{name}: {len(domain)} images x {count} view{'s' * (count > 1)} x {each} at {config.train_from}"
            say(f"{line}, {size_text} in float16, {where}", tqdm.write)
        stored: Optional[StoredMaps] = None
        if mode == "ram":
            maps = np.empty((len(domain), count, *shape), np.float16)
            for index, rows in _maps(below, domain, count, np.arange(len(domain)), f"maps of {name}"):
                maps[index] = rows
            stored = StoredMaps(maps)
        elif mode == "disk":
            stored = _on_disk(config, data, domain, below, name, count, shape, folder)
        domain.use_maps(below, count, stored)


def _mode(config: RunConfig, size: int, folder: Path) -> str:
    if not identified_by_files(config):
        return "ram" if size < RAM_LIMIT and world_size() == 1 else "off"
    if config.cache != "auto":
        return config.cache
    if room_for(size, folder):
        return "disk"
    return "ram" if size < RAM_LIMIT and world_size() == 1 else "off"


def _on_disk(
    config: RunConfig, data: Data, domain: Domain, below: Below, name: str, views: int, shape: Tuple[int, ...], folder: Path
) -> StoredMaps:
    contents = files_digest(domain.view.paths, folder, config.workers)
    key = (f"maps 1 {config.arch} {config.train_from} {state_digest(below)} {data.resize} {data.crop} {data.flip} {views} "
           f"{contents} {normalisation(config)}")  # fmt: skip
    store = MapFile(folder / f"{_hash(key)}.npy", len(domain), (views, *shape))
    folder.mkdir(parents=True, exist_ok=True)
    everything, title = np.arange(len(domain)), f"maps of {name}"
    with _lock(key):
        state = gather_objects((store.read() is not None, store.damaged()) if rank() == 0 else None)[0]
        present, damaged = state if state is not None else (False, [])
        if not present:
            with atomic_path(store.file) if rank() == 0 else nullcontext() as draft:
                if draft is not None:
                    store.create(draft)
                place = gather_objects(draft)[0]
                for index, rows in _maps(below, domain, views, np.array_split(everything, world_size())[rank()], title):
                    store.write(place, index, rows)  # type: ignore[arg-type]
                gather_objects(None)
        elif damaged:
            if rank() == 0:
                say(f"{store.file}: {len(damaged)} of {len(domain)} entries are damaged and made again", tqdm.write)
            mine = np.array_split(np.asarray(damaged), world_size())[rank()]
            for index, rows in _maps(below, domain, views, mine, title):
                store.write(store.file, index, rows)
        gather_objects(None)
    stored = store.read()
    if stored is None:
        raise UserError(f"cannot read {store.file}, which another process of this run wrote: set TLLIB_EXT_CACHE to a folder "
                        "that all of them see, or cache='off'")  # fmt: skip
    return stored


def _maps(below: Below, domain: Domain, views: int, chosen: np.ndarray, title: str) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Positions, and the maps of all their views as they are kept, batch by batch."""
    pixels, augment = domain.images()
    chunks: List[np.ndarray] = [chosen[start : start + FROZEN_BATCH] for start in range(0, len(chosen), FROZEN_BATCH)]
    batches = zip(chunks, ahead(pixels.stream(chunks), domain.device))
    for index, rows in tqdm(batches, title, len(chunks), unit="batch", leave=False, disable=None):
        crops = (augment.view(rows, np.full(len(index), view), index) for view in range(views))
        maps = np.stack([below(x).cpu().numpy() for x in crops], 1)
        if not np.isfinite(maps).all():
            raise UserError(f"train_from: what the backbone computes for {domain.view.path(int(index[0]))} or one of the next "
                            f"{len(index) - 1} images does not fit float16: choose another stage")  # fmt: skip
        yield index, np.ascontiguousarray(StoredMaps.layout(maps))
