"""What a run prints on the terminal."""

import dataclasses
from pathlib import Path
from typing import Optional

from prettytable import PrettyTable

from tllib_ext.distributed import world_size
from tllib_ext.evaluation.openset import OpenSetReport
from tllib_ext.training.build import RunParts
from tllib_ext.training.config import RunConfig
from tllib_ext.training.resolve import parse_hparams
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.labels_file import GivenLabels

__all__ = ["hparams_table", "head", "progress_line", "tail"]


def hparams_table(config: RunConfig) -> str:
    """The method's hyper-parameters, their values in this configuration and where these come from."""
    values = parse_hparams(config)
    table = PrettyTable(["name", "value", "source", "meaning"], align="l")
    for f in dataclasses.fields(values):
        table.add_row([f.name, getattr(values, f.name), f.metadata.get("source", ""), f.metadata.get("help", "")])
    return table.get_string()


def head(parts: RunParts, folder: Path) -> str:
    """What is about to be trained on what."""
    config = parts.config
    parameters = sum(p.numel() for p in parts.method.parameters())
    seen = config.steps * config.batch_size * world_size()
    batch = f"{config.batch_size}" if world_size() == 1 else f"{world_size()} x {config.batch_size}"
    labelled, split = parts.target.view.targets is not None, parts.data.split
    classes = f"{split.num_source} classes: {', '.join(split.source_classes)}\n  the target may hold any of them, and others"
    passes = (f"{config.steps} steps of {batch} + {batch}: {seen / len(parts.source):.1f} passes over the source, "
              f"{seen / len(parts.target):.1f} over the target")  # fmt: skip
    if parts.method.training_free:
        passes = "no training"
    return "\n".join([
        f"{config.method} on {config.data}: {parts.data.source_name} ({len(parts.source)} images) to "
        f"{parts.data.target_name} ({len(parts.target)} images{'' if labelled else ', unlabelled'})",
        split.table() if labelled else classes,
        _labels_line(parts),
        f"{passes}; {parameters:,} parameters on {parts.device}",
        f"files: {folder}",
    ])  # fmt: skip


def _labels_line(parts: RunParts) -> str:
    """Where the source labels come from, and how many are wrong if that is known."""
    config, noisy = parts.config, parts.noisy
    if isinstance(noisy, GivenLabels):
        draw = f"labels: {config.labels}, {', '.join(noisy.columns)}; methods are told the rate {noisy.rate:g}"
        if len(noisy.columns) > 1:
            draw += f"; annotators agree on {noisy.agreement.mean():.1%} of their labels"
    else:
        draw = f"label noise: {config.noise} {config.rate:g} ({config.noise_mode}, seed {config.noise_seed})"
    if noisy.truth is None:
        return draw if isinstance(noisy, GivenLabels) else "label noise: none simulated"
    diagonal = noisy.realised_transition.diagonal()
    spread = f"diagonal of the realised matrix {diagonal.min():.2f} to {diagonal.max():.2f}"
    return f"{draw}; {noisy.is_flipped.sum()} of {len(noisy)} labels wrong, {noisy.realised_rate:.2%}; {spread}"


def progress_line(record: Record) -> str:
    """One evaluation in one line."""
    names = ("train_loss", "train_kept", "train_known", "os", "os_star", "unk", "h_score", "auroc", "predicted_unknown")
    shown = [f"{name.removeprefix('train_')} {record[name]:.3f}" for name in names if record.get(name) is not None]
    return f"step {record['step']:>5}  " + "  ".join(shown)


def tail(report: Optional[OpenSetReport], results: Record, folder: Path) -> str:
    """What came out, and where it is."""
    names = ("report.html", "predictions.csv", "suspects.csv", "transition.csv", "results.json", "results.jsonl",
             "model.safetensors", "env.json")  # fmt: skip
    files = f"files in {folder}: {', '.join(name for name in names if (folder / name).exists())}, tb/"
    if report is None:
        share = results["predicted_unknown"]
        return f"the target is unlabelled: {share:.1%} of its images were called unknown; see predictions.csv\n{files}"
    best = f"OS {results['oracle_os']:.3f} at step {results['oracle_step']}"
    return f"{report.table()}\nthe numbers are of the last step; best step on target labels (oracle): {best}\n{files}"
