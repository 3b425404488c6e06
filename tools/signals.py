"""Send signals to commands at random moments; then look for processes that are left, and run the same command again.

    python tools/signals.py --signals 60

Each command runs in a session of its own. Five seconds (of an idle machine) after SIGINT, SIGTERM, SIGHUP or SIGKILL no process
of it may be left, and the same command must end with the bytes of an undisturbed one. What fails is printed; exit code 1.
``--record FILE`` writes the counts.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "stress"), str(Path(__file__).resolve().parents[1])]

__all__ = ["COMMANDS", "session", "stress"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
#: seconds that a command has for its end after a signal, on an idle machine; where other programs run, as many times more
#: as they slow a process down
PATIENCE = 5.0
#: command -> its words, in a folder with ``features`` and ``images``, and the files that are compared
COMMANDS: Dict[str, Dict[str, Any]] = {
    "train": {
        "words": "train images -d folder -s alpha -t beta -a small_cnn --image-size 32 -b 4 --noise pair --steps 30"
        " --checkpoint-every 5 --eval-every 10 --cache off -j 2 --device cpu --no-report --log out",
        "files": ("model.safetensors", "results.json", "results.jsonl", "predictions.csv", "suspects.csv"),
    },
    "features": {
        "words": "features images --out out -a small_cnn --scratch --image-size 32 -b 4 -j 2 --device cpu --overwrite",
        "files": ("alpha.npz", "beta.npz"),
    },
    "audit": {
        "words": "audit images/alpha --out out -a small_cnn --weights none --image-size 32 -j 2 --device cpu",
        "files": ("suspects.csv", "corrected.txt", "moves.csv", "labels.npy", "pred_probs.npy"),
    },
    "compare": {
        "words": "compare features -d features --tasks alpha2beta --methods source_only,divergence --noise pair:0.2 --seeds 0"
        " -b 8 --split 3/2/1 --bottleneck-dim 16 --steps 40 --jobs 2 --device cpu --no-report --out out",
        "files": ("cells/*/results.json", "cells/*/results.jsonl"),
    },
}


def start(words: List[str], folder: Path) -> int:
    """A command in a forked child, in a session and a folder of its own; returns its process id, which is the session's."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)
        from tllib_ext.cli.main import main

        code = main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        os._exit(code)


def session(number: int) -> List[int]:
    """The living processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == number and fields[0] != "Z":
                found.append(int(entry))
    return found


def contents(command: str, folder: Path) -> Dict[str, bytes]:
    """The compared files of a command."""
    out = folder / "out"
    return {
        str(file.relative_to(out)): file.read_bytes() for name in COMMANDS[command]["files"] for file in sorted(out.glob(name))
    }


def slowdown() -> float:
    """How much longer than on an idle machine a process takes now: time by processor time, at least 1."""
    wall, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.1:
        pass
    return max(1.0, (time.monotonic() - wall) / (time.process_time() - used))


def disturb(command: str, folder: Path, number: int, moment: float) -> List[int]:
    """Run a command, send it a signal after ``moment`` seconds; the processes that are left after :data:`PATIENCE`."""
    child = start(COMMANDS[command]["words"].split(), folder)
    deadline = time.monotonic() + moment
    while time.monotonic() < deadline and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.005)
    os.kill(child, number)  # a zombie takes it too
    deadline = time.monotonic() + PATIENCE * slowdown()
    while session(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = session(child)
    for process in left:
        os.kill(process, signal.SIGKILL)
    os.waitpid(child, 0)
    return left


def prepare(folder: Path) -> Path:
    """A folder with small images and features."""
    from forked_runs import write_features, write_images

    folder.mkdir(parents=True)
    write_images(folder / "images")
    write_features(folder / "features")
    return folder


def run(command: str, folder: Path) -> int:
    """Run a command to its end; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(start(COMMANDS[command]["words"].split(), folder), 0)[1])


def stress(signals: int, seed: int, work: Path, commands: List[str]) -> Dict[str, Any]:
    """``signals`` signals, shared out among the commands; the counts."""
    import torch
    from forked_runs import preload, write_features

    torch.set_num_threads(1)  # threads do not survive a fork
    os.environ["TLLIB_EXT_CACHE"] = str(work / "cache")
    preload(write_features(work / "preload"))
    expected, seconds = {}, {}
    for command in commands:
        folder, begin = prepare(work / f"calm {command}"), time.monotonic()
        if run(command, folder):
            raise SystemExit(f"{command} failed undisturbed: {(folder / 'log').read_text()[-500:]}")
        expected[command], seconds[command] = contents(command, folder), time.monotonic() - begin
    rng, counts, bad = random.Random(seed), Counter(), []  # type: ignore[var-annotated]
    for place in range(signals):
        command, number = commands[place % len(commands)], rng.choice(SIGNALS)
        os.environ["TLLIB_EXT_CACHE"] = str(work / f"cache {place}")
        folder = prepare(work / str(place))
        left = disturb(command, folder, number, rng.uniform(0.02, 1.0) * seconds[command])
        code = run(command, folder)
        finished = code == 2 and "holds a finished run" in (folder / "log").read_text()  # the signal came after its end
        same = (code == 0 or finished) and contents(command, folder) == expected[command]
        row = f"{command}, {number.name}"
        counts[f"{row}: {'no process left' if not left else 'a process is left'}, {'same bytes' if same else 'OTHER BYTES'}"] += 1
        if left or not same:
            bad.append({"signal": row, "left": len(left), "code": code, "log": (folder / "log").read_text()[-400:]})
            print(json.dumps(bad[-1]), flush=True)
    return {"signals": signals, "seed": seed, "counts": dict(sorted(counts.items())), "bad": bad}


def main() -> int:
    """Parse the flags, send the signals, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS), help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the counts there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        row = stress(args.signals, args.seed, Path(work), args.commands.split(","))
    print(json.dumps(row, indent=1))
    if args.record is not None:
        args.record.write_text(json.dumps(row, indent=1) + "\n")
    return 1 if row["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
