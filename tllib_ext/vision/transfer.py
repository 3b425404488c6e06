"""Receive one file over HTTP, by several connections if they break: bounded in attempts, in waiting and in size."""

import errno
import os
import re
import shutil
import ssl
import sys
import time
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Optional
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from tllib_ext import __version__
from tllib_ext.errors import UserError, one_line

__all__ = ["FetchError", "Transfer", "readable_size", "say"]

#: connections that are tried, seconds before the second one (twice as many before each further one), seconds without a
#: byte after which a connection counts as stalled, and bytes that are read at a time
ATTEMPTS, PAUSE, TIMEOUT, CHUNK = 5, 1.0, 30.0, 1 << 20
#: the largest file that is accepted; the largest archive of DomainNet has 6 GB
LARGEST = 32 << 30
#: errors of a machine without a network; negative numbers are those of a name that cannot be resolved
_NO_NETWORK = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)


class FetchError(UserError):
    """A file could not be downloaded. Exit code 2."""


class _Broken(Exception):
    """A connection ended early; another attempt may help."""


class Transfer:
    """One download.

    Args:
        title (str): what is downloaded, for messages
        url (str): its address, http or https
        part (Path): the file that is begun, or continued
        place (Path): where the complete file belongs, for messages
        room (float): free disk space that is needed, times the size of the file. Default: 1
    """

    def __init__(self, title: str, url: str, part: Path, place: Path, room: float = 1.0):
        self.title, self.url, self.part, self.place, self.room = title, url, part, place, room
        self.announced = False

    def run(self) -> None:
        """Make ``part`` complete, or raise :class:`FetchError`; what was received stays in ``part``."""
        if not self.url.startswith(("https://", "http://")):
            raise self._failed("expected an address that begins with https:// or http://")
        begun, problem = self.received(), ""
        # without a terminal there is no bar: it would fill a log file
        with tqdm(desc=self.place.name, unit="B", unit_scale=True, disable=None, leave=False, file=sys.stderr) as self.bar:
            for attempt in range(ATTEMPTS):
                if attempt:
                    say(f"{self.title}: {problem}; trying again")
                    time.sleep(PAUSE * 2 ** (attempt - 1))
                try:
                    return self._connect()
                except FetchError:
                    raise
                except _Broken as broken:
                    problem = str(broken)
                except (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError, ValueError) as error:
                    reason = error.reason if isinstance(error, URLError) else error
                    problem = one_line(getattr(reason, "strerror", None) or reason) or type(reason).__name__
                    if self.received() <= begun and not _may_pass(reason):
                        break
        raise self._failed(problem)

    def received(self) -> int:
        """Bytes of the file that are here."""
        return self.part.stat().st_size if self.part.exists() else 0

    def _failed(self, problem: str) -> FetchError:
        kept = self.received()
        remedy = f"; {readable_size(kept)} are kept, the same command continues" if kept else ""
        return FetchError(f"cannot download {self.title} from {self.url}: {problem}{remedy}")

    def _connect(self) -> None:
        """Append what one connection sends, until the file is complete."""
        start = self.received()
        headers = {"User-Agent": f"tllib_ext/{__version__}", **({"Range": f"bytes={start}-"} if start else {})}
        try:
            with urlopen(Request(self.url, headers=headers), timeout=TIMEOUT) as response:
                self._receive(response, start)
        except HTTPError as error:
            error.close()
            if error.code == 416 and start:  # nothing is left to send: the part is complete, or of another file
                if error.headers.get("Content-Range", "").strip() == f"bytes */{start}":
                    return
                self.part.unlink()
                raise _Broken("the server has another file than the one that was begun") from None
            problem = f"the server answered {error.code} {one_line(error.reason)}"
            if error.code < 500 and error.code not in (408, 429):
                raise self._failed(problem) from None
            raise _Broken(problem) from None

    def _receive(self, response: HTTPResponse, start: int) -> None:
        if self.url.startswith("https://") and not response.geturl().startswith("https://"):
            raise self._failed(f"the server leads to {response.geturl()}, which is not https")
        length = response.headers.get("Content-Length", "")
        total = int(length) if re.fullmatch(r"\d{1,18}", length) else None
        if response.status == 206:
            sent = re.fullmatch(r"bytes (\d{1,18})-\d+/(\d{1,18})", response.headers.get("Content-Range", "").strip())
            if sent is None or int(sent[1]) != start:
                self.part.unlink()
                raise _Broken("the server sent another range than the one that was asked for")
            total = int(sent[2])
        else:  # a server without ranges sends the file from its beginning
            start = 0
        self._check_room(start, total)
        self._announce(start, total)
        self._copy(response, start, LARGEST if total is None else total)
        if total is not None and self.received() < total:
            raise _Broken(f"the connection ended after {self.received()} of {total} bytes")

    def _check_room(self, start: int, total: Optional[int]) -> None:
        if total is not None and total > LARGEST:
            raise self._failed(f"it has {readable_size(total)}, expected at most {readable_size(LARGEST)}")
        need, free = (total or 0) * self.room - start, shutil.disk_usage(self.part.parent).free
        if need > free:
            where = f"{self.part.parent}, where {readable_size(free)} are free"
            raise self._failed(f"it needs {readable_size(need)} in {where}: free some space")

    def _announce(self, start: int, total: Optional[int]) -> None:
        self.bar.total, self.bar.n = total, start
        self.bar.refresh()
        if not self.announced:
            size = "of unknown size" if total is None else readable_size(total)
            rest = f", from byte {start} on" if start else ""
            say(f"downloading {self.title}, {size}{rest}, from {self.url} to {self.place}")
        self.announced = True

    def _copy(self, response: HTTPResponse, start: int, most: int) -> None:
        received = start
        with open(self.part, "ab" if start else "wb") as stream:
            # read1 gives what has arrived: an interruption loses nothing
            while received <= most and (chunk := response.read1(CHUNK)):
                received += len(chunk)
                stream.write(chunk)
                self.bar.update(len(chunk))
            stream.flush()
            os.fsync(stream.fileno())
        if received > most:
            self.part.unlink()
            raise self._failed(f"the server sends more than {readable_size(most)}")


def _may_pass(reason: object) -> bool:
    """Whether another attempt may help, although nothing was received."""
    number = reason.errno if isinstance(reason, OSError) else None
    no_network = number is not None and (number < 0 or number in _NO_NETWORK)
    return not no_network and not isinstance(reason, ValueError)  # a certificate that is not valid is a ValueError


def say(line: str) -> None:
    """One line on stderr, above the progress bar: stdout may be a command's result."""
    tqdm.write(one_line(line), file=sys.stderr)


def readable_size(size: float) -> str:
    """Bytes as a person reads them.

    Examples::

        >>> readable_size(102_530_333), readable_size(300)
        ('102.5 MB', '300 bytes')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} bytes"
