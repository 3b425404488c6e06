"""Downloads of tllib's scripts by this package's rules: checked, resumed, and one line of error where there is no network."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Callable, Dict, NoReturn, Optional, Sequence

import torch.hub

from tllib_ext import compat
from tllib_ext.errors import UserError, one_line
from tllib_ext.vision.datasets.downloads import ARCHIVES, DatasetDownload
from tllib_ext.vision.fetch import Needed, RemoteFile, forbidden, provide
from tllib_ext.vision.models.pretrained import remote_weights

__all__ = ["route_downloads"]


def route_downloads(download: bool = True) -> None:
    """From now on weights that PyTorch, and data that tllib's classes fetch go through :mod:`tllib_ext.vision.fetch`.

    What torchvision's other data sets and timm's hub fetch stays theirs, and is refused where downloads are forbidden.

    Args:
        download (bool): whether the network may be used. Default: True
    """
    data_sets = {archive.url: name for name, archives in ARCHIVES.items() for archive in archives}
    utils: ModuleType = importlib.import_module(f"{compat.torchvision().__name__}.datasets.utils")
    own = {name: getattr(utils, name) for name in ("download_url", "download_and_extract_archive")}

    def weights(url: str, dst: str, hash_prefix: Optional[str] = None, progress: bool = True) -> None:
        remote = remote_weights(Path(dst).name, url)
        otherwise = "or use the script's --scratch"
        _provide([RemoteFile(remote.title, remote.url, Path(dst), hash_prefix or remote.digest, otherwise=otherwise)], download)

    def url_of_data(url: str, root: str, *args: object, **kwargs: object) -> object:
        return other_data("download_url", url, root, *args, **kwargs)

    def archive_of_data(url: str, download_root: str, *args: object, **kwargs: object) -> object:
        if url in data_sets:  # all archives of the data set: tllib then finds the others
            _provide([DatasetDownload(data_sets[url], Path(download_root))], download)
            return None
        return other_data("download_and_extract_archive", url, download_root, *args, **kwargs)

    def other_data(name: str, url: str, root: str, *args: object, **kwargs: object) -> object:
        if forbidden(download):
            _end(f"{url} is not on this machine; downloads are forbidden: --no-download, TLLIB_EXT_OFFLINE=1")
        return own[name](url, root, *args, **kwargs)

    torch.hub.download_url_to_file = weights
    replaced: Dict[str, Callable[..., object]] = {
        "download_url": url_of_data, "download_and_extract_archive": archive_of_data}  # fmt: skip
    for module in (utils, sys.modules.get("tllib.vision.datasets._util")):
        for name, replacement in replaced.items():
            if hasattr(module, name):
                setattr(module, name, replacement)
    if forbidden(download):  # also for what the script reaches by other ways
        os.environ.update(TLLIB_EXT_OFFLINE="1", HF_HUB_OFFLINE="1")


def _provide(needed: Sequence[Needed], download: bool) -> None:
    try:
        provide(needed, download)
    except UserError as error:
        _end(str(error).replace("download=False", "--no-download"))


def _end(message: str) -> NoReturn:
    # tllib's logger has replaced sys.stderr; tllib catches every Exception and would exit with code 0
    print(f"error: {one_line(message)}", file=sys.__stderr__)
    raise SystemExit(2)
