"""Runs that end at a chosen file operation, as by a power cut, and what is left of them after the same command again."""

import builtins
import io
import itertools
import json
import os
import random
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from forked_runs import features_flags, fork_run, preload, temporary_files, write_features

from tllib_ext.errors import UserError

__all__ = ["CRASHED", "command", "count_operations", "crash", "crash_at", "draw_blank_plots", "is_complete",
           "outputs", "run_in"]  # fmt: skip

#: exit code of a run that was made to end
CRASHED = 9
_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def command(root: Path, method: str = "divergence") -> List[str]:
    """Flags of a short run with its report; its folder is ``run`` in the working directory."""
    words = [word for word in features_flags(root) if word != "--no-report"]
    return [*words, "-m", method, "--steps", "6", "--eval-every", "2", "--checkpoint-every", "2", "--log", "run"]


def watch(act: Callable[[str, Optional[int]], None]) -> None:
    """Call ``act`` before every file operation below ``run``, in this process, until its end.

    Operations are opening for writing, renaming, removing and making; and ``fsync``, for which ``act`` gets the file.
    """

    def inside(path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        return "run" in Path(os.fsdecode(path)).parts

    def hook(event: str, args: Tuple) -> None:
        writes = event == "open" and len(args) > 2 and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in _EVENTS) and inside(args[0]):
            act(event, None)

    whole = os.fsync

    def fsync(handle: int) -> None:
        act("fsync", handle)
        whole(handle)

    os.fsync = fsync
    sys.addaudithook(hook)


def crash_at(number: int, seed: int = 0) -> Callable[[], None]:
    """What a child calls to end before its ``number``-th file operation.

    Before an ``fsync`` a part of what was written is lost: the file loses up to 200 of its last bytes.
    """

    def before() -> None:
        left = [number]

        def act(event: str, handle: Optional[int]) -> None:
            left[0] -= 1
            if left[0]:
                return
            if handle is not None:
                name = os.readlink(f"/proc/self/fd/{handle}")
                if os.path.isfile(name):
                    size = os.path.getsize(name)
                    os.truncate(name, size - random.Random(f"{seed} {number}").randrange(1 + min(size, 200)))
            os._exit(CRASHED)

        watch(act)

    return before


def count_operations(file: Path) -> Callable[[], None]:
    """What a child calls to write the names of its file operations to ``file``, outside of ``run``."""

    def before() -> None:
        stream = builtins.open(file, "w", buffering=1)
        watch(lambda event, handle: print(event, file=stream))

    return before


def run_in(folder: Path, words: List[str], before: Optional[Callable[[], None]] = None) -> int:
    """Exit code of one run in a child process whose working directory is ``folder``."""
    folder.mkdir(exist_ok=True)

    def start() -> None:
        os.chdir(folder)
        if before is not None:
            before()

    status = os.waitpid(fork_run(words, folder / "log", start), 0)[1]
    return os.waitstatus_to_exitcode(status)


def is_complete(folder: Path) -> bool:
    """Whether the run in ``folder`` is complete: the same command refuses to replace it."""
    return (folder / "run" / "results.json").exists()


def outputs(folder: Path) -> Dict[str, bytes]:
    """Every file of a finished run but the lock, the checkpoints, the clock's files (``tb/``) and temporary ones.

    The working directory, which ``env.json`` and the page name, stands there as ``.``: ``folder`` is another in each run.
    """
    run = folder / "run"
    files = [file for file in sorted(run.rglob("*")) if file.is_file() and file.parent.name not in ("tb", "checkpoints")]
    directory = os.fsencode(folder)
    contents = {str(file.relative_to(run)): file.read_bytes().replace(directory, b".") for file in files if file.name != ".lock"}
    return {**contents, **{str(file): b"" for file in temporary_files(run)}}


def draw_blank_plots() -> None:
    """Replace every plot by one small image in this process: drawing takes most of the time and no file operation."""
    from PIL import Image

    from tllib_ext.report import style

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "white").save(buffer, "png")
    style.png_bytes = lambda fig: buffer.getvalue()


def crash_twice(folder: Path, words: List[str], points: Tuple[int, int], seed: int, row: Dict[str, Any], expected: Dict) -> None:
    """Two crashes in one folder, then the same command; the outcome is added to ``row``."""
    for point in points:
        code = run_in(folder, words, crash_at(point, seed))
        if code not in (0, CRASHED):
            raise UserError(f"a run ended with {code}; see {folder / 'log'}")
        row["crashes"] += code == CRASHED
        if is_complete(folder):  # it needed fewer operations, or all that was left was to bring results.json to the disk
            break
    else:
        run_in(folder, words)
    row["runs"] += 1
    if is_complete(folder) and outputs(folder) == expected:
        row["same bytes"] += 1
        shutil.rmtree(folder)
    else:
        print(f"{folder} differs after crashes at operations {points}", flush=True)


def crash(args: Any, work: Path) -> Dict[str, Any]:
    """End runs at file operations, two of them in a row in every folder, then let the same command finish.

    The first crash goes through all operations of a run in order, the second is drawn at random.
    """
    features, rng = write_features(work / "features"), random.Random(args.seed)
    preload(features, report=True)
    draw_blank_plots()
    methods = args.methods.split(",")[:2]
    rows, expected = [], {}
    for method in methods:
        if run_in(work / method, command(features, method), count_operations(work / f"{method}.txt")):
            raise UserError(f"the uninterrupted run failed; see {work / method / 'log'}")
        expected[method] = outputs(work / method)
        operations = len((work / f"{method}.txt").read_text().split())
        rows.append({"run": f"{method} on features, with report", "file operations": operations, "crashes": 0, "runs": 0,
                     "same bytes": 0})  # fmt: skip
    with suppress(KeyboardInterrupt):  # Ctrl-C: record what was done
        for number in itertools.count():
            if sum(row["crashes"] for row in rows) >= args.points:
                break
            place = number % len(rows)
            points = (1 + number % rows[place]["file operations"], rng.randint(1, rows[place]["file operations"]))
            command_words = command(features, methods[place])
            crash_twice(work / f"{number}", command_words, points, args.seed, rows[place], expected[methods[place]])
            if number % 10 == 9:
                print(json.dumps(rows), flush=True)
    return {"seed": args.seed, "rows": rows}
