"""Files that appear whole or not at all."""

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Union

__all__ = ["whole_file", "write_json", "write_text"]


@contextmanager
def whole_file(path: Union[str, os.PathLike]) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` when the block ends well, and goes if not.

    Examples::

        >>> with whole_file("/tmp/whole_file_example.txt") as draft:
        ...     _ = draft.write_text("all of it")
        >>> Path("/tmp/whole_file_example.txt").read_text()
        'all of it'
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Union[str, os.PathLike], text: str) -> None:
    """Write a text file whole."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_json(path: Union[str, os.PathLike], value: Any) -> None:
    """Write a JSON file whole."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")
