"""Where the default weights of named backbones come from, and where they are kept: torch's cache of checkpoints."""

import os
import re
from pathlib import Path
from typing import Any, Optional

import torch

from tllib_ext import compat
from tllib_ext.vision.fetch import RemoteFile, base_address

__all__ = ["of_torchvision", "of_tllib", "of_timm", "remote_weights"]


def of_torchvision(name: str) -> RemoteFile:
    """The first ImageNet weights, which the paper started from; newer recipes have other features."""
    return remote_weights(name, compat.torchvision().models.get_model_weights(name).IMAGENET1K_V1.url)


def of_tllib(name: str) -> Optional[RemoteFile]:
    """What tllib's ResNets load: torchvision's files. None for any other network of tllib."""
    compat.tllib("vision.models")  # it supplies model_urls where torchvision has it no longer
    from torchvision.models import resnet

    url = getattr(resnet, "model_urls", {}).get(name)
    return None if url is None else remote_weights(name, url)


def of_timm(name: str) -> Optional[RemoteFile]:
    """The file that timm names for a network: on the Hugging Face hub, else an address of its own. None if there is none."""
    config: Any = compat.timm().get_pretrained_cfg(name)
    if config is None:
        return None
    if config.hf_hub_id:
        hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        file = config.hf_hub_filename or "model.safetensors"
        url = f"{hub}/{config.hf_hub_id}/resolve/main/{file}"
        kept = f"{config.hf_hub_id.replace('/', '--')}--{file}"
        return _kept_by_the_hub(config.hf_hub_id, file, name) or remote_weights(name, url, kept)
    return remote_weights(name, config.url) if config.url else None


def _kept_by_the_hub(repository: str, file: str, name: str) -> Optional[RemoteFile]:
    """The file in the cache of Hugging Face's own library, where another program has fetched it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, file)
    return RemoteFile(f"the weights of {name}", "", Path(found)) if isinstance(found, str) else None


def remote_weights(name: str, url: str, file: str = "") -> RemoteFile:
    """The weights of a backbone in torch's cache; ``TLLIB_EXT_WEIGHTS_URL`` replaces the address before the file's name.

    Args:
        name (str): of the backbone
        url (str): address of its publisher
        file (str): name in the cache, and below ``TLLIB_EXT_WEIGHTS_URL``. Default: the last part of the address

    Examples::

        >>> remote_weights("resnet50", "https://example.org/resnet50-0676ba61.pth").digest
        '0676ba61'
    """
    file = file or url.rsplit("/", 1)[-1]
    base = base_address("TLLIB_EXT_WEIGHTS_URL")
    digest = re.search(r"-([0-9a-f]{8,})\.", file)
    return RemoteFile(
        f"the weights of {name}", f"{base}/{file}" if base else url,
        Path(torch.hub.get_dir()) / "checkpoints" / file, digest[1] if digest else "", otherwise="or give weights=FILE",
    )  # fmt: skip
