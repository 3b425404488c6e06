"""The record of a benchmark as Markdown tables, for the terminal and for ``docs/performance.md``."""

import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

from tllib_ext.io import write_between_marks

__all__ = ["machine", "tables", "write_page"]

Column = Tuple[str, Union[str, Callable[[Mapping[str, Any]], Any]]]


def machine(device: str = "cpu") -> Dict[str, Any]:
    """Processor, versions, and the load before the benchmark."""
    import torch

    info = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    found = {"cpu": models[0] if models else platform.machine(), "instructions": torch.backends.cpu.get_cpu_capability(),
             "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__,
             "load": round(os.getloadavg()[0], 1)}  # fmt: skip
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _number(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.2f}" if abs(value) < 20 else f"{value:,.0f}"


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
        ("network", _setting), ("longhand ms", "plain_ms"), ("tllib_ext ms", "ours_ms"),
        ("speed-up (by CPU time)", _speedup), ("longhand forwards / backwards", _passes("plain")),
        ("tllib_ext", _passes("ours")), ("warm-up s", lambda row: f"{row['warm_up_s']:.1f}"),
        ("longhand MB", "plain_mb"), ("tllib_ext MB", "ours_mb"),
        ("largest difference, float64", "difference"), ("float32", "float32_difference")]),
    "ablation": ("Ablation of the training step", [
        ("network", _setting), ("without", "without"), ("ms", "ms"), ("time against all (by CPU time)", _speedup)]),
    "data": ("Data pipeline", [
        ("photographs", "domain"), ("number", "images"), ("Pillow images/s", "plain_per_s"),
        ("cached images/s", "ours_per_s"), ("speed-up (by CPU time)", _speedup), ("cache built, images/s", "build_per_s")]),
}  # fmt: skip


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> List[str]:
    def cell(row: Mapping[str, Any], what: Any) -> str:
        return what(row) if callable(what) else _number(row.get(what))

    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row, what) for _, what in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def tables(record: Mapping[str, Any]) -> str:
    """All tables of a record, each with the command and the machine that made it."""
    text: List[str] = []
    for part, (title, columns) in TABLES.items():
        entry = record.get(part)
        if entry:
            m = entry["machine"]
            where = f"{m.get('gpu') or m['cpu']} ({m['instructions']}), {m['cores']} cores, {m['threads']} threads"
            made = f"`{entry['command']}`, {entry['date']}; {where}, torch {m['torch']}, load before {m['load']}"
            text += ["", f"**{title}** ({made})", "", *_table(entry["rows"], columns)]
    return "\n".join(text) + "\n"


def write_page(page: Path, record: Mapping[str, Any]) -> None:
    """Write the record's tables between the marks of the page."""
    write_between_marks(page, f"\n{tables(record)}\n")
