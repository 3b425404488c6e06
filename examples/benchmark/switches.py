"""Whether switches that make a run faster change what it finds: the same task with and without them, seed by seed."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence

from tqdm import tqdm

__all__ = ["SWITCHES", "compare_switches"]

#: name -> flags, and how many processes share the batch of 36.
SWITCHES = {
    "none": ([], 1),
    "--compile": (["--compile"], 1),
    "two processes": ([], 2),
    "two processes, --batch-norm local": (["--batch-norm", "local"], 2),
}


def compare_switches(features: Path, seeds: Sequence[int], steps: int, task: Sequence[str] = ("A", "D")) -> List[Dict[str, Any]]:
    """OS of the paper's method on stored features at pair 0.2 with each switch.

    Args:
        features (Path): folder of ``domain.npz`` files
        seeds (sequence of int): of the runs
        steps (int): of each run
        task (pair of str): source and target

    Returns:
        a row for each switch: OS by seed, and the largest change of a seed's OS against the run without switches
    """
    found: Dict[str, List[float]] = {name: [] for name in SWITCHES}
    with tqdm(desc="switches", total=len(seeds) * len(SWITCHES), unit="run", leave=False, disable=None) as bar:
        for seed in seeds:
            for name, (flags, processes) in SWITCHES.items():
                words = [str(features), "-d", "features", "-s", task[0], "-t", task[1], "--noise", "pair", "--rate", "0.2",
                         "--steps", str(steps), "--eval-every", str(steps), "--seed", str(seed), *flags]  # fmt: skip
                found[name].append(_run(words, processes)["os"])
                bar.update()
    return [{"switch": name, "task": "2".join(task), "steps": steps, "seeds": list(seeds), "os": values,
             "mean": statistics.mean(values), "spread": statistics.pstdev(values),
             "change": max(abs(a - b) for a, b in zip(values, found["none"]))} for name, values in found.items()]  # fmt: skip


def _run(words: Sequence[str], processes: int) -> Dict[str, Any]:
    """``results.json`` of one run of the training script."""
    script = Path(__file__).resolve().parents[2] / "examples" / "noisy_unida.py"
    start, env = [sys.executable], dict(os.environ)
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--"]
        env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // processes))
    with tempfile.TemporaryDirectory() as folder:
        more = ["-b", str(36 // processes), "--device", "cpu", "--no-report", "--log", f"{folder}/run"]
        done = subprocess.run([*start, str(script), *words, *more], env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return json.loads(Path(folder, "run", "results.json").read_text(encoding="utf-8"))
