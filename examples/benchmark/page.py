"""The record of a benchmark as Markdown tables, for the terminal and for ``docs/performance.md``."""

import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

from tllib_ext.io import write_between_marks

__all__ = ["machine", "tables", "write_page"]

Column = Tuple[str, Union[str, Callable[[Mapping[str, Any]], str]]]


def machine(device: str, threads: int) -> Dict[str, Any]:
    """Processor, versions, and the load before the benchmark."""
    import torch

    info = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    cpu = f"{models[0] if models else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    return {"processor": torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu, "cores": os.cpu_count(),
            "threads": threads or torch.get_num_threads(), "torch": torch.__version__,
            "load": round(os.getloadavg()[0], 1)}  # fmt: skip


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0e}" if 0 < abs(value) < 1e-3 else f"{value:.2f}" if abs(value) < 20 else f"{value:,.0f}"


def _speedup(row: Mapping[str, Any]) -> str:
    return f"**{row['ratio']:.2f}x** ({row['ratio_cpu']:.2f}x)"


def _passes(who: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "{forward:g} / {backward:g}".format(**row[f"{who}_passes"])


def _setting(row: Mapping[str, Any]) -> str:
    place = "" if row["arch"] == "features" else f", {row['px']} px"
    more = [word for word in ("compiled" if row.get("compile") else "", row.get("precision", "")) if word not in ("", "fp32")]
    return ", ".join([f"{row['arch']}{place}, batch {row['batch']}", *more])


#: part -> title and columns
TABLES: Dict[str, Tuple[str, List[Column]]] = {
    "step": ("Training step", [
        ("network", _setting), ("longhand ms", "plain_ms"), ("tllib_ext ms", "ours_ms"), ("speed-up (by CPU time)", _speedup),
        ("longhand forwards / backwards", _passes("plain")), ("tllib_ext", _passes("ours")), ("warm-up s", "warm_up_s"),
        ("longhand MB", "plain_mb"), ("tllib_ext MB", "ours_mb"), ("largest difference, float64", "difference"),
        ("float32", "float32_difference")]),
    "ablation": ("Ablation of the training step", [
        ("network", _setting), ("without", "without"), ("ms", "ms"), ("time against all (by CPU time)", _speedup)]),
    "stages": ("Training step by the first stage that is trained", [
        ("network", _setting), ("method", "method"), ("`--train-from`", "train_from"), ("ms", "ms"),
        ("faster than all (by CPU time)", _speedup), ("MB", "mb"), ("memory of all / this", "mb_ratio")]),
}  # fmt: skip


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> List[str]:
    cells = [[what(row) if callable(what) else _number(row[what]) for _, what in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in [[title for title, _ in columns], ["---"] * len(columns), *cells]]


def tables(record: Mapping[str, Any]) -> str:
    """All tables of a record, each with the command and the machine that made it."""
    text: List[str] = []
    for part, (title, columns) in TABLES.items():
        if part in record:
            entry, m = record[part], record[part]["machine"]
            where = f"{m['processor']}, {m['cores']} cores, {m['threads']} threads, torch {m['torch']}, load before {m['load']}"
            text += ["", f"**{title}** (`{entry['command']}`, {entry['date']}; {where})", "", *_table(entry["rows"], columns)]
    return "\n".join(text) + "\n"


def write_page(page: Path, record: Mapping[str, Any]) -> None:
    """Write the record's tables between the marks of the page."""
    write_between_marks(page, f"\n{tables(record)}\n")
