"""Fault injection: kill runs, interrupt torchrun, watch a long run, read damaged files; record the outcome.

    python tests/stress/stress.py kill [--kills 8] [--methods divergence,dance]     SIGKILL at random times, then resume
    python tests/stress/stress.py crash [--points 300]                              power cuts at file operations, then resume
    python tests/stress/stress.py torchrun                                          SIGKILL and SIGTERM with two processes
    python tests/stress/stress.py long [--steps 20000]                              memory, open files, time per step
    python tests/stress/stress.py fuzz [--cases 100000]                             every file reader on damaged files
    python tests/stress/stress.py table                                             docs/reliability.md from the record

With --record a part updates docs/reliability.json and the tables in docs/reliability.md.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, Dict, List

from crash_points import crash
from forked_runs import (
    features_flags,
    fork_run,
    images_flags,
    kill_after,
    preload,
    read_outputs,
    temporary_files,
    write_features,
    write_images,
)

from tllib_ext.cli.parser import Parser, argument, run_main
from tllib_ext.errors import UserError
from tllib_ext.training.setting import COUNT, SEED

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "docs" / "reliability.json", ROOT / "docs" / "reliability.md"


def kill(args: Any, work: Path) -> Dict[str, Any]:
    """Kill runs at random times and resume them; every one must end with the files of an uninterrupted run."""
    from tllib_ext.training.checkpoint import load_checkpoint

    rng, rows, inputs = random.Random(args.seed), [], {"features": write_features(work / "features"), "images": work / "images"}
    write_images(inputs["images"])
    preload(inputs["features"])
    for name in args.methods.split(","):
        method, _, kind = name.partition("@")
        more = ("-m", method, "--steps", args.steps, "--eval-every", 20, "--checkpoint-every", 5)
        if kind == "images":
            more = ("-m", method, "--steps", 16, "--eval-every", 8, "--checkpoint-every", 3, "-j", 1, "--cache", "off")
        words = (images_flags if kind == "images" else features_flags)(inputs[kind or "features"]) + list(map(str, more))
        reference, begin = work / f"{name}_reference", time.monotonic()
        os.waitpid(fork_run([*words, "--log", str(reference)], work / f"{name}_reference.log"), 0)
        expected, duration = read_outputs(reference), time.monotonic() - begin
        row: Dict[str, Any] = {"run": f"{method} on {kind or 'features'}", "kills": 0, "while a file was written": 0,
                               "before the first checkpoint": 0, "runs": 0, "same bytes": 0}  # fmt: skip
        folder, begun = work / f"{name}_0", False
        while row["kills"] < args.kills or begun:
            child = fork_run([*words, "--log", str(folder)], work / f"{folder.name}.log")
            enough, in_checkpoint = row["kills"] >= args.kills, row["kills"] % 3 == 2
            delay = 1e9 if enough else rng.uniform(0, duration * (0.5 if in_checkpoint else 1))
            begun = kill_after(child, folder, delay, in_checkpoint and not enough)
            if begun:
                row["kills"] += 1
                row["while a file was written"] += bool(temporary_files(folder))
                row["before the first checkpoint"] += load_checkpoint(folder) is None  # a torn checkpoint raises
            else:
                row["runs"] += 1
                row["same bytes"] += read_outputs(folder) == expected and not temporary_files(folder)
                folder = work / f"{name}_{row['runs']}"
        print(json.dumps(row), flush=True)
        rows.append(row)
    return {"seed": args.seed, "steps": args.steps, "rows": rows}


def torchrun(args: Any, work: Path) -> Dict[str, Any]:
    """Two processes: SIGKILL after a checkpoint, SIGTERM to torchrun after the next, then run to the end."""
    features = write_features(work / "features")
    # Without "--" torchrun takes --log as its own option.
    script = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--",
              str(ROOT / "examples" / "noisy_unida.py")]  # fmt: skip

    def start(log: Path) -> subprocess.Popen:
        words = [*features_flags(features), "--steps", str(args.steps), "--checkpoint-every", "5", "--log", str(log)]
        with open(f"{log}.log", "a") as out:
            return subprocess.Popen([*script, *words], stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def wait_for_checkpoint(process: subprocess.Popen, folder: Path, after: float) -> None:
        file = folder / "checkpoints" / "last.pt"
        while not file.exists() or file.stat().st_mtime < after:
            if process.poll() is not None:
                raise UserError(f"a run ended with {process.returncode} before its checkpoint; see {folder}.log")
            time.sleep(0.05)

    if start(work / "reference").wait():
        raise UserError(f"the uninterrupted run failed; see {work / 'reference.log'}")
    folder, begin = work / "interrupted", time.time()
    process = start(folder)
    wait_for_checkpoint(process, folder, begin)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):  # torchrun starts its processes in sessions of their own
        os.kill(pid, signal.SIGKILL)
    process.wait()
    begin, process = time.time(), start(folder)
    wait_for_checkpoint(process, folder, begin)
    process.terminate()
    process.wait()
    stopped = (folder.with_suffix(".log")).read_text().count("stopped after step")
    if start(folder).wait():
        raise UserError(f"the resumed run failed; see {folder}.log")
    return {"processes": 2, "steps": args.steps, "killed": 1, "said that it stopped": stopped,
            "same bytes": read_outputs(folder) == read_outputs(work / "reference")}  # fmt: skip


def long(args: Any, work: Path) -> Dict[str, Any]:
    """Sample memory, open files and processor time of a long run at every evaluation."""
    log, every = work / "long", max(1, args.steps // 20)
    words = [*features_flags(write_features(work / "features")), "--steps", str(args.steps), "--eval-every", str(every),
             "--log", str(log)]  # fmt: skip
    command = [sys.executable, str(ROOT / "examples" / "noisy_unida.py"), *words]
    samples: List[Dict[str, Any]] = []
    with open(work / "long.log", "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)})
        while process.poll() is None:
            time.sleep(0.05)
            done = (log / "results.jsonl").read_bytes().count(b"\n") if (log / "results.jsonl").exists() else 0
            if done > len(samples):
                try:
                    samples.append({"step": done * every, **sample_process(process.pid)})
                except (OSError, IndexError):  # the process has ended
                    break
    if process.wait():
        raise UserError(f"the long run ended with {process.returncode}; see {work / 'long.log'}")
    steady = [sample for sample in samples if sample["step"] >= args.steps // 10]
    first, last, half = steady[0], steady[-1], steady[len(steady) // 2]

    def milliseconds(a: Dict[str, Any], b: Dict[str, Any]) -> float:
        return round(1000 * (b["cpu_s"] - a["cpu_s"]) / (b["step"] - a["step"]), 3)

    return {"steps": args.steps, "samples": samples, "from_step": first["step"],
            "memory_growth": round(last["rss_kib"] / first["rss_kib"] - 1, 4),
            "open_files": sorted({sample["open_files"] for sample in steady}),
            "ms_per_step": [milliseconds(first, half), milliseconds(half, last)]}  # fmt: skip


def sample_process(pid: int) -> Dict[str, Any]:
    """Resident memory, open files and processor seconds of a process."""
    rss = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")][0]
    clock = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {"rss_kib": int(rss.split()[1]), "open_files": len(os.listdir(f"/proc/{pid}/fd")),
            "cpu_s": (int(clock[11]) + int(clock[12])) / os.sysconf("SC_CLK_TCK")}  # fmt: skip


def fuzz(args: Any, work: Path) -> Dict[str, Any]:
    """Every reader on generated and damaged files: it reads them or raises UserError, nothing else."""
    import fuzz_readers  # needs hypothesis

    each = -(-args.cases // len(fuzz_readers.READERS))
    rows = []
    for name in fuzz_readers.READERS:
        begin = time.monotonic()
        tried, refused = fuzz_readers.fuzz(name, each, args.seed, work)
        rows.append({"reader": name, "cases": tried, "refused": refused, "seconds": round(time.monotonic() - begin)})
        print(json.dumps(rows[-1]), flush=True)
    return {"seed": args.seed, "rows": rows}


def write_page(record: Dict[str, Any]) -> None:
    """Write the record as tables between the marks of the page."""
    from tllib_ext.io import write_between_marks

    def table(rows: List[Dict[str, Any]]) -> List[str]:
        lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
        return ["| " + " | ".join(map(str, line)) + " |" for line in lines]

    def part(name: str, title: str) -> List[str]:
        if name not in record:
            return []
        entry = record[name]
        rows = entry.get("rows") or [{key: value for key, value in entry.items() if key not in ("samples", "date", "versions")}]
        made = f"`python tests/stress/stress.py {name}`, {entry['date']}, {entry['versions']}, seed {entry.get('seed', 0)}"
        return ["", f"**{title}** ({made})", "", *table(rows)]

    text = [*part("kill", "SIGKILL, then the same command again"),
            *part("crash", "Power cuts at every file operation of a run with its report, two per run, then the same command"),
            *part("torchrun", "Two processes under torchrun"),
            *part("long", "A long run"), *part("fuzz", "Damaged files")]  # fmt: skip
    write_between_marks(PAGE, "\n".join(text) + "\n\n")


def add_to_record(part: str, result: Dict[str, Any]) -> Dict[str, Any]:
    """Replace one part of docs/reliability.json; returns the whole record."""
    import platform

    import torch

    from tllib_ext.io import write_json

    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    record[part] = {**result, "date": date.today().isoformat(), "versions": versions}
    write_json(RECORD, record)
    return record


def main() -> int:
    """Run one part, or write the tables alone."""
    parser = Parser(description=__doc__)
    parser.add_argument("part", choices=["kill", "crash", "torchrun", "long", "fuzz", "table"])
    parser.add_argument(
        "--methods", default="divergence,dance,credo,credo@images", help="of kill, the first two of crash (default: %(default)s)"
    )
    parser.add_argument("--kills", type=argument(COUNT), default=8, help="per method (default: 8)")
    parser.add_argument("--points", type=argument(COUNT), default=300, help="of crash, over all runs (default: 300)")
    parser.add_argument("--steps", type=argument(COUNT), help="default: 60 (kill), 200 (torchrun), 20000 (long)")
    parser.add_argument("--cases", type=argument(COUNT), default=100_000, help="of fuzz, over all readers (default: 100000)")
    parser.add_argument("--seed", type=argument(SEED), default=0)
    parser.add_argument("--keep", metavar="DIR", help="work in this folder and leave all files there")
    parser.add_argument("--record", action="store_true", help="update docs/reliability.json and docs/reliability.md")
    args = parser.parse_args()
    if args.part != "table":
        args.steps = args.steps or {"kill": 60, "torchrun": 200, "long": 20_000}.get(args.part)
        work = Path(args.keep or tempfile.mkdtemp(prefix="stress"))
        work.mkdir(exist_ok=True)
        try:
            result = {"kill": kill, "crash": crash, "torchrun": torchrun, "long": long, "fuzz": fuzz}[args.part](args, work)
        finally:
            if args.keep is None:
                shutil.rmtree(work, ignore_errors=True)
        if args.record:
            write_page(add_to_record(args.part, result))
        elif "rows" not in result:
            print(json.dumps(result))
    else:
        write_page(json.loads(RECORD.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
