"""Moves of images into the folders of their labels: planned and shown first, never over a file, never out of the root."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import List, Optional, Sequence, Set, Tuple

from tllib_ext.errors import UserError
from tllib_ext.io import escape_formula, write_rows
from tllib_ext.typing import PathLike
from tllib_ext.vision.datasets.corrections import record_moves

__all__ = ["Moves", "plan_moves", "write_moves"]


@dataclass
class Moves:
    """What :func:`plan_moves` found.

    Args:
        root (Path): the data folder, absolute, without links; nothing outside of it is touched
        moves (list): old and new place of every file to move, absolute
        refused (list): path and reason of every file that has another label and cannot be moved
        unchanged (int): files that are where their label says
    """

    root: Path
    moves: List[Tuple[Path, Path]] = field(default_factory=list)
    refused: List[Tuple[str, str]] = field(default_factory=list)
    unchanged: int = 0

    def carry_out(self) -> List[Path]:
        """Move the files and remove the folders that this leaves empty; returns these folders.

        A file that cannot be moved any more is added to :attr:`refused` and taken from :attr:`moves`.
        """
        done, emptied = [], set()
        for old, new in self.moves:
            try:
                if os.path.lexists(new):
                    raise FileExistsError(17, f"{new} is there already")
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(old, new)
            except OSError as error:
                self.refused.append((str(old), error.strerror or str(error)))
            else:
                done.append((old, new))
                emptied.add(old.parent)
        self.moves = done
        record_moves(self.root, done)
        return [folder for parent in sorted(emptied) for folder in self._remove_empty(parent)]

    def _remove_empty(self, folder: Path) -> List[Path]:
        removed = []
        while folder != self.root and self.root in folder.parents:
            try:
                folder.rmdir()
            except OSError:  # not empty
                break
            removed.append(folder)
            folder = folder.parent
        return removed


def plan_moves(root: PathLike, paths: Sequence[str], labels: Sequence[str], given: Optional[Sequence[str]] = None) -> Moves:
    """Plan the move of ``root/…/CLASS/…/image`` into the folder of its label.

    Args:
        root (str): the data folder
        paths (sequence of str): the images, relative to ``root`` or absolute
        labels (sequence of str): names of their classes
        given (sequence of str, optional): the classes whose folders they are in; default: the first folder below ``root``
    """
    if not os.path.isdir(root):
        raise UserError(f"there is no folder {root}: expected the data folder, which the paths are relative to")
    plan = Moves(Path(os.path.realpath(root)))
    taken: Set[Path] = set()
    for number, (path, label) in enumerate(zip(paths, labels)):
        try:
            move = _move(plan.root, path, label, None if given is None else given[number])
            if move is None:
                plan.unchanged += 1
                continue
            if os.path.lexists(move[1]) or move[1] in taken:
                raise UserError(f"a file of this name is in {move[1].parent}")
        except (UserError, ValueError) as error:
            plan.refused.append((path, str(error)))
            continue
        taken.add(move[1])
        plan.moves.append(move)
    return plan


def _move(root: Path, path: str, label: str, given: Optional[str]) -> Optional[Tuple[Path, Path]]:
    """Old and new place of an image; None if it is where it belongs. Refusals are :class:`UserError`."""
    if label in ("", ".", "..") or "/" in label or os.sep in label or "\0" in label or len(os.fsencode(label)) > 255:
        raise UserError(f"the class {label!r} cannot be the name of a folder")
    if "\0" in path or ".." in PurePath(path).parts:
        raise UserError("its path leads out of the data folder")
    old = Path(os.path.realpath(os.path.dirname(os.path.join(root, path)))) / os.path.basename(path)
    if root not in old.parents:
        raise UserError(f"it is not in the data folder {root}")
    folders = list(old.relative_to(root).parts[:-1])
    if given is not None and given not in folders:
        raise UserError(f"no folder of its path is called {given!r}")
    place = 0 if given is None else len(folders) - 1 - folders[::-1].index(given)
    if folders[place : place + 1] == [label]:
        return None
    if not os.path.isfile(old):
        raise UserError("there is no such file")
    new = root.joinpath(*folders[:place], label, *folders[place + 1 :], old.name)
    if Path(os.path.realpath(new.parent)) != new.parent:
        raise UserError(f"{new.parent} leads elsewhere by a symbolic link")
    return old, new


def write_moves(file: PathLike, paths: Sequence[str], given: Sequence[str], labels: Sequence[str]) -> int:
    """Write ``path,given,label`` of the images whose label is another one than the given; returns their number."""
    rows = [(path, old, new) for path, old, new in zip(paths, given, labels) if old != new]
    write_rows(file, ("path", "given", "label"), (tuple(map(escape_formula, map(str, row))) for row in rows))
    return len(rows)
