"""The archives of Office-31, Office-Home, VisDA-2017 and DomainNet that tllib publishes, fetched into a data folder."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from tllib_ext.typing import PathLike
from tllib_ext.vision.archives import ArchiveError, unpack
from tllib_ext.vision.fetch import RemoteFile, base_address, new_folders, only_one_process
from tllib_ext.vision.transfer import FetchError, say

__all__ = ["ARCHIVES", "Archive", "DatasetDownload", "lacking_data", "named_like"]


class Archive(NamedTuple):
    """One archive of a data set: the file, the folder that it holds, tllib's address."""

    file: str
    folder: str
    url: str


def _archives(**keys: str) -> Tuple[Archive, ...]:
    """Archives by the keys of their addresses; the lists come last, by them a data set is recognised."""
    files = {folder: f"{folder}.zip" if folder == "image_list" else f"{folder}.tgz" for folder in keys}
    return tuple(Archive(files[folder], folder, f"https://cloud.tsinghua.edu.cn/f/{key}/?dl=1") for folder, key in keys.items())


#: by data set, as tllib 0.4 lists them; it publishes no checksums, those inside of the formats are verified.
#:
#: :meta hide-value:
ARCHIVES: Dict[str, Tuple[Archive, ...]] = {
    "Office31": _archives(
        amazon="ec12dfcddade43ab8101", dslr="a41d818ae2f34da7bb32", webcam="8a41009a166e4131adcd",
        image_list="2c1dd9fbcaa9455aa4ad",
    ),
    "OfficeHome": _archives(
        Art="6a006656b9a14567ade2", Clipart="ae88aa31d2d7411dad79", Product="f219b0ff35e142b3ab48",
        Real_World="6c19f3f15bb24ed3951a", image_list="1b0171a188944313b1f5",
    ),
    "VisDA2017": _archives(
        train="c5f3ce59139144ec8221", validation="da70e4b1cf514ecea562", image_list="c107de37b8094c5398dc"
    ),
    "DomainNet": _archives(
        clipart="f0515164a4864220b98b", infograph="98b19d5fc9884109a9cb", painting="11285ce9fbd34bb7b28c",
        quickdraw="6faa9efb498b494abf66", real="17a101842c564959b525", sketch="b305add26e9d47349495",
        image_list="bf0fe327e4b046eb89ba",
    ),
}  # fmt: skip

#: below the data folder: archives and what was unpacked of them, until the data set is complete
_STAGING = ".download"


@dataclass(frozen=True)
class DatasetDownload:
    """A data set whose archives are fetched and unpacked into a folder.

    Everything is collected in ``root/.download`` and moved to its place at the end, the lists last: a reader finds the
    whole data set or none. Archives that a person has put into ``root`` are unpacked without a network and stay there.

    Args:
        name (str): a key of :data:`ARCHIVES`
        root (Path): the data folder
    """

    name: str
    root: Path

    @property
    def title(self) -> str:
        """Its name and its folder."""
        return f"{self.name} in {self.root}"

    def missing(self) -> List[Archive]:
        """The archives whose folders are neither in place nor unpacked."""
        return [one for one in ARCHIVES[self.name] if not (self.root / one.folder).exists()]

    def bring(self) -> str:
        """What a person without a network brings from where to where."""
        files = ", ".join(f"{one.file} from {self._url(one)}" for one in self.missing() if not self._is_here(one))
        return f"put the archives of {self.name} into {self.root} ({files})"

    def at_hand(self) -> bool:
        """Whether all archives are here, so that no network is needed."""
        return all(map(self._is_here, self.missing()))

    def fetch(self) -> None:
        """Fetch and unpack what is missing, or raise :class:`~tllib_ext.vision.transfer.FetchError`."""
        staging = self.root / _STAGING
        with new_folders(staging), only_one_process(self.root / "download", self.name):
            missing = self.missing()  # another process may have been here meanwhile
            for archive in missing:
                if not (staging / archive.folder).exists():
                    self._unpack(archive, staging)
            for archive in missing:
                os.rename(staging / archive.folder, self.root / archive.folder)
            if missing:
                say(f"{self.name} is complete in {self.root}")
            shutil.rmtree(staging, ignore_errors=True)

    def _unpack(self, archive: Archive, staging: Path) -> None:
        brought, fetched, unpacked = self.root / archive.file, staging / archive.file, staging / "unpacking"
        if unpacked.exists():  # of a process that was killed
            shutil.rmtree(unpacked)
        if not brought.exists():
            RemoteFile(f"{archive.file} of {self.name}", self._url(archive), fetched, room=2.0).fetch()
        try:
            unpack(brought if brought.exists() else fetched, unpacked)
            if not (unpacked / archive.folder).is_dir():
                shutil.rmtree(unpacked)
                raise ArchiveError(f"{archive.file} of {self.name} holds no folder {archive.folder}")
        except ArchiveError as error:
            fetched.unlink(missing_ok=True)
            remedy = f"replace {brought}" if brought.exists() else "it was removed, try again"
            raise FetchError(f"{error}; {remedy}") from None
        os.rename(unpacked / archive.folder, staging / archive.folder)
        shutil.rmtree(unpacked)
        fetched.unlink(missing_ok=True)

    def _is_here(self, archive: Archive) -> bool:
        """Whether a person has brought the archive, or it is unpacked already."""
        return (self.root / archive.file).exists() or (self.root / _STAGING / archive.folder).exists()

    def _url(self, archive: Archive) -> str:
        base = base_address("TLLIB_EXT_DATA_URL")
        return f"{base}/{self.name}/{archive.file}" if base else archive.url


def lacking_data(name: str, root: PathLike) -> Optional[DatasetDownload]:
    """The download of a data set, if ``root`` is absent, empty, holds nothing but its archives, or one that was interrupted."""
    root = Path(root)
    if root.exists() and not root.is_dir():
        return None
    visible = {entry for entry in os.listdir(root) if not entry.startswith(".")} if root.exists() else set()
    untouched = visible <= {archive.file for archive in ARCHIVES[name]}
    download = DatasetDownload(name, root)
    return download if download.missing() and (untouched or (root / _STAGING).exists()) else None


def named_like(root: PathLike) -> Optional[str]:
    """The data set that a folder is named like, whatever the case and the hyphens.

    Examples::

        >>> named_like("data/office-home"), named_like("data/VisDA_2017"), named_like("my_photos")
        ('OfficeHome', 'VisDA2017', None)
    """
    letters = "".join(filter(str.isalnum, os.path.basename(os.path.abspath(root)).lower()))
    return next((name for name in ARCHIVES if name.lower() == letters), None)
