"""The record of a benchmark as tables: for the terminal, and between the marks of ``docs/performance.md``."""

import os
import platform
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union

from tllib_ext.io import write_between_marks

__all__ = ["machine", "tables", "write_page"]

Column = Tuple[str, Union[str, Callable[[Mapping[str, Any]], Any]]]


def machine(device: str = "cpu") -> Dict[str, Any]:
    """What ran the benchmark, and how busy it was with other things."""
    import torch

    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    found = {"cpu": model, "instructions": torch.backends.cpu.get_cpu_capability(), "cores": os.cpu_count(),
             "threads": torch.get_num_threads(), "python": platform.python_version(), "torch": torch.__version__,
             "load": round(os.getloadavg()[0], 1)}  # fmt: skip
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _number(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:.2f}" if abs(value) < 20 else f"{value:,.0f}"


def _times(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"**{row[key]:.2f}x** ({row[f'{key}_cpu']:.2f}x)" if key in row else ""


def _passes(who: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row[f'{who}_forwards']:g} / {row[f'{who}_backwards']:g}" if f"{who}_forwards" in row else ""


def _percent(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{100 * row[key]:g} %"


def _setting(row: Mapping[str, Any]) -> str:
    place = "" if row["arch"] == "features" else f", {row['px']} px"
    more = [word for word in ("compiled" if row["compile"] else "", row["precision"]) if word not in ("", "fp32")]
    return ", ".join([f"{row['arch']}{place}, batch {row['batch']}", *more])


#: part -> title and columns
TABLES: Dict[str, Tuple[str, List[Column]]] = {
    "step": ("Training step", [
        ("network", _setting), ("longhand ms", "plain_ms"), ("ours ms", "ours_ms"),
        ("faster (by CPU time)", _times("ratio")), ("longhand forwards / backwards", _passes("plain")),
        ("ours", _passes("ours")), ("warm-up s", lambda row: f"{row['warm_up_s']:.1f}"),
        ("longhand MB", "plain_mb"), ("ours MB", "ours_mb"),
        ("largest difference, float64", "difference"), ("float32", "float32_difference")]),
    "data": ("Data pipeline", [
        ("photographs", "domain"), ("number", "images"), ("Pillow images/s", "plain_per_s"),
        ("cached images/s", "ours_per_s"), ("faster (by CPU time)", _times("ratio")), ("cache built, images/s", "build_per_s"),
        ("against Pillow", _times("build_ratio")), ("built by two threads", _times("build_by_two_ratio")),
        ("largest difference of a pixel", "pixel_difference")]),
    "eval": ("Evaluation", [
        ("photographs", "domain"), ("network", "arch"), ("number", "images"), ("longhand ms per image", "plain_ms"),
        ("ours ms", "ours_ms"), ("faster (by CPU time)", _times("ratio")), ("same class", _percent("same_classes")),
        ("largest difference of a score", "score_difference")]),
    "start_up": ("From a list file to the first batch", [
        ("lines", "lines"), ("order", "order"), ("seconds", "seconds"), ("CPU seconds", "cpu_seconds"),
        ("peak MB", "peak_mb"), ("of which before", "before_mb")]),
    "metrics": ("Metrics of a target", [
        ("images", "images"), ("seconds", "seconds"), ("CPU seconds", "cpu_seconds"), ("peak MB", "peak_mb"),
        ("of which before", "before_mb")]),
    "classes": ("Step on features, batch 36, by classes", [
        ("classes", "classes"), ("ms", "ms"), ("CPU ms", "cpu_ms"), ("peak MB", "peak_mb")]),
    "processes": ("Step on features by processes, global batch 36", [
        ("processes", "processes"), ("batch of each", "batch"), ("ms", "ms")]),
    "switches": ("The same result: OS of whole runs on features", [
        ("switch", "switch"), ("task, steps", lambda row: f"{row['task']}, pair 0.2, {row['steps']}"),
        ("OS, by seed", lambda row: ", ".join(f"{value:.3f}" for value in row["os"])),
        ("mean", lambda row: f"{row['mean']:.3f} ± {row['spread']:.3f}"),
        ("largest change of a seed's", lambda row: f"{row['change']:.3f}")]),
}  # fmt: skip


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> List[str]:
    def cell(row: Mapping[str, Any], what: Any) -> str:
        return what(row) if callable(what) else _number(row.get(what))

    lines = [[title for title, _ in columns], ["---"] * len(columns)]
    lines += [[cell(row, what) for _, what in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def tables(record: Mapping[str, Any]) -> str:
    """All tables of a record in Markdown, each with the command and the machine that made it."""
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
    """Put the record's tables between the page's marks."""
    write_between_marks(page, f"\n{tables(record)}\n")
