"""Edit the files of a run folder at random and run report, select, predict and evaluate on it.

    python tools/edit_runs.py --edits 1000

Each command must end within five processor seconds, with its result or with one line on stderr and exit code 2. What does not is
printed and kept in --keep FOLDER; exit code 1. ``--record FILE`` writes the counts.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "stress"), str(Path(__file__).resolve().parents[1])]

__all__ = ["edit", "make_run", "outcome", "stress"]

#: values that stand where something else is expected
VALUES: List[Any] = [
    None, True, "", "text", "nan", "\ud800", "x" * 3000, 0, -1, 1.5, 1e308, 10**400, math.nan, math.inf, [], {}, [[]],
    [1], [[1], [1, 2]], ["a"], {"a": {"b": []}}, [None], -(2**63), 2**63,
]  # fmt: skip
#: processor seconds that a command may take
LIMIT = 5.0


def make_run(folder: Path) -> Path:
    """A finished run on images with frozen features, so that every file of a run is there."""
    from forked_runs import images_flags, write_images

    from tllib_ext.cli import train

    write_images(folder / "images")
    words = [word for word in images_flags(folder / "images") if word != "--no-report"]
    more = [
        "--freeze-backbone",
        "--steps",
        "4",
        "--eval-every",
        "2",
        "--image-size",
        "32",
        "-j",
        "0",
        "--log",
        str(folder / "run"),
    ]
    train.main([*words, *more])
    return folder / "run"


def edit(folder: Path, rng: random.Random) -> str:
    """Change one file of a run folder; returns what was done."""
    files = sorted(
        file for file in folder.iterdir() if file.is_file() and file.suffix in (".json", ".jsonl", ".csv", ".safetensors")
    )
    file = rng.choice(files)
    kinds: List[Callable[[Path, random.Random], str]] = [_bytes, _cut, _replace]
    if file.suffix in (".json", ".jsonl"):
        kinds = [_value] * 12 + kinds
    elif file.suffix == ".csv":
        kinds = [_cell] * 8 + kinds
    return f"{file.name}: {rng.choice(kinds)(file, rng)}"


def _bytes(file: Path, rng: random.Random) -> str:
    content = bytearray(file.read_bytes())
    places = [rng.randrange(len(content)) for _ in range(rng.choice((1, 3, 20)))] if content else []
    for place in places:
        content[place] = rng.randrange(256)
    file.write_bytes(bytes(content))
    return f"{len(places)} bytes"


def _cut(file: Path, rng: random.Random) -> str:
    size = rng.choice((0, 1, rng.randrange(1 + file.stat().st_size)))
    os.truncate(file, size)
    return f"cut to {size} bytes"


def _replace(file: Path, rng: random.Random) -> str:
    kind = rng.choice(("absent", "folder", "pipe", "loop", "zeros", "list"))
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file)
    elif kind == "zeros":
        file.write_bytes(bytes(1000))
    elif kind == "list":
        file.write_text("[" * 50_000)
    return kind


def _value(file: Path, rng: random.Random) -> str:
    """Replace, remove or add one value of a JSON file, at any depth."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else [file.read_text(encoding="utf-8")]
    number = rng.randrange(len(lines))
    tree = json.loads(lines[number])
    places: List[Tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in list(items):
            places.append((node, key))
            walk(child)

    walk(tree)
    node, key = rng.choice(places)
    value = rng.choice(VALUES)
    if rng.random() < 0.15:
        del node[key]
        done = f"{key} removed"
    else:
        node[key] = value
        done = f"{key} = {str(value)[:30] if not isinstance(value, int) or abs(value) < 10**20 else 'a long integer'!r}"
    lines[number] = json.dumps(tree)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return done.encode("ascii", "backslashreplace").decode()


def _cell(file: Path, rng: random.Random) -> str:
    lines = file.read_text(encoding="utf-8").splitlines()
    row = rng.choice((0, rng.randrange(len(lines))))
    cells = lines[row].split(",")
    column = rng.randrange(len(cells))
    value = rng.choice(
        ["", "nan", "inf", "-1", "1e999", "9" * 400, "text", "'", '"', "\0", "unknown", "a,b", "=1+1", "0.5", "99999999"]
    )
    cells[column] = value
    lines[row] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return f"row {row}, column {column}: {value[:20]!r}"


def outcome(words: List[str], log: Path) -> Tuple[Optional[int], float, str]:
    """Exit code (None for a command that hangs), processor seconds and output of a command in a forked child."""
    begin, child = time.monotonic(), os.fork()
    if not child:
        code = 70
        try:
            stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)
            from tllib_ext.cli.main import main

            code = main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    while time.monotonic() - begin < 12 * LIMIT:  # other programs take time too
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, log.read_text(errors="replace")
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, time.monotonic() - begin, log.read_text(errors="replace")


def is_answer(code: Optional[int], text: str) -> bool:
    """Whether a command gave its result, or one line that says what is wrong."""
    errors = [line for line in text.splitlines() if "error:" in line]
    return code == 0 or (code == 2 and len(errors) == 1 and "Traceback" not in text)


def stress(edits: int, seed: int, work: Path, keep: Optional[Path] = None) -> Dict[str, Any]:
    """``edits`` edits of one run, four commands on each; the counts of what they answered."""
    import torch
    from crash_points import draw_blank_plots

    torch.set_num_threads(1)  # threads do not survive a fork
    draw_blank_plots()
    run, rng = make_run(work), random.Random(seed)
    counts: Counter = Counter()
    slowest, bad = 0.0, []
    for number in range(edits):
        folder = work / "edited"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run, folder)
        done = edit(folder, rng)
        image = next((work / "images" / "beta" / "red").iterdir())
        commands = {"report": [str(folder)], "select": [str(folder)], "evaluate": [str(folder / "predictions.csv"), "--all"],
                    "predict": [str(folder), str(image), "--device", "cpu"]}  # fmt: skip
        for name, words in commands.items():
            code, seconds, text = outcome([name, *words], work / "log")
            slowest = max(slowest, seconds)
            kind = "hangs" if code is None else "result" if code == 0 else "one line" if is_answer(code, text) else "defect"
            counts[f"{name}: {kind}"] += 1
            if kind in ("hangs", "defect") or seconds > LIMIT:
                bad.append({"edit": done, "command": name, "code": code, "seconds": round(seconds, 1), "last line": text[-300:]})
                print(json.dumps(bad[-1]), flush=True)
                if keep is not None:
                    _keep(folder, keep / str(number))
    return {
        "edits": edits,
        "seed": seed,
        "commands": dict(sorted(counts.items())),
        "slowest, processor seconds": round(slowest, 1),
        "bad": bad,
    }


def _keep(folder: Path, copy: Path) -> None:
    """Copy what can be copied of a run folder."""
    copy.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, copy)


def main() -> int:
    """Parse the flags, edit, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy the folders that a command fails on there")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the counts there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        row = stress(args.edits, args.seed, Path(work), args.keep)
    print(json.dumps(row, indent=1))
    if args.record is not None:
        args.record.write_text(json.dumps(row, indent=1) + "\n")
    return 1 if row["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
