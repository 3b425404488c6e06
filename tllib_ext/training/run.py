"""One run from flags to files."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, Dict, Optional

import numpy as np
from prettytable import PrettyTable
from tqdm import tqdm

from tllib_ext.cli import method_options
from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.training.audit import Audit
from tllib_ext.training.checkpoint import load_model, save_checkpoint, save_model
from tllib_ext.training.context import Context
from tllib_ext.training.distributed import rank, world_size
from tllib_ext.training.domain import Steps
from tllib_ext.training.fit import Meter, fit
from tllib_ext.training.players import Players
from tllib_ext.training.predict import evaluate_domain, features_of
from tllib_ext.training.recorder import Recorder
from tllib_ext.training.setup import Parts, build, method_class, parse_hparams
from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches

__all__ = ["run_from_args", "train", "run_folder"]


def run_from_args(args: argparse.Namespace) -> int:
    """What ``examples/noisy_unida.py`` does after parsing."""
    if args.list_hp:
        print(hparams_table(args))
        return 0
    if args.phase == "test":
        return _test(args)
    train(build(args))
    return 0


def hparams_table(args: argparse.Namespace) -> str:
    """The method's hyper-parameters, their values under the given flags and where these come from."""
    cls = method_class(args.method)
    values = parse_hparams(cls, args.preset, method_options(args))
    table = PrettyTable(["name", "value", "source", "meaning"], align="l")
    for f in dataclasses.fields(values):
        table.add_row([f.name, getattr(values, f.name), f.metadata.get("source", ""), f.metadata.get("help", "")])
    return table.get_string()


def run_folder(args: argparse.Namespace) -> Path:
    """``--log``, or a name made of what the run is; a finished run is never overwritten unasked."""
    if args.log is not None:
        folder = Path(args.log)
        if (folder / "results.json").exists() and not args.overwrite:
            raise UserError(f"{folder} holds a finished run: add --overwrite, or choose another --log")
        return folder
    noise = "clean" if args.noise == "none" else f"{Path(args.noise).stem}_{args.rate:g}"
    parts = [args.data.replace(":", "-"), f"{args.source}2{args.target}", noise, args.method.replace(":", "-"), f"seed{args.seed}"]
    folder, number = Path("runs") / "_".join(parts), 1
    while (folder / "results.json").exists():
        number += 1
        folder = Path("runs") / "_".join([*parts, str(number)])
    return folder


def train(parts: Parts) -> Dict[str, Any]:
    """Train, evaluate, write the run folder; returns ``results.json``."""
    args, method = parts.args, parts.method
    folder = run_folder(args)
    recorder = Recorder(folder, active=rank() == 0)
    say = tqdm.write if rank() == 0 else (lambda text: None)
    say(_head(parts, folder))
    recorder.start(parts.config())
    method.audit = Audit(len(parts.noisy), parts.data.split.num_source, parts.device)
    method.prepare(_context(parts))
    play = Players(method.players(), args.lr, args.steps)
    samplers = (
        BalancedBatches(parts.noisy.targets, args.batch_size * world_size(), args.seed),
        ShuffledBatches(len(parts.target), args.batch_size * world_size(), args.seed),
    )
    best: Dict[str, Any] = {}
    last: Dict[str, Any] = {}

    def after_step(step: int, meter: Meter, bar: Any) -> None:
        done = step + 1
        if done % args.eval_every and done != args.steps:
            return
        prediction, report = evaluate_domain(method, parts.target)
        record = {"step": done, **{f"train_{name}": value for name, value in meter.read().items()}}
        if report is not None:
            record.update(report.flat())
            if not best or report.os > best["os"]:
                best.update(os=report.os, step=done)
        else:
            record["predicted_unknown"] = float(np.mean(prediction.unknown))
        recorder.evaluation(record)
        say(_progress_line(record))
        last.update(prediction=prediction, report=report, record=record)

    steps = range(0, args.steps)
    feeds = [domain.train_batches(Steps(sampler, steps.start, steps.stop, rank(), world_size()))
             for domain, sampler in zip((parts.source, parts.target), samplers)]  # fmt: skip
    fit(method, play, *feeds, steps, args.seed, after_step=after_step)
    results = _results(parts, last, best)
    if rank() == 0:
        state = {"step": args.steps, "method": method.state_dict(), "play": play.state_dict(), "audit": method.audit.state_dict()}
        save_checkpoint(folder, state)
        _write_outputs(parts, folder, last)
    recorder.finish(results)
    say(_tail(last["report"], results, folder))
    return results


def _context(parts: Parts) -> Context:
    return Context(
        steps=parts.args.steps,
        num_source=len(parts.source),
        num_target=len(parts.target),
        rate=parts.noisy.rate,
        seed=parts.args.seed,
        source_labels=parts.noisy.targets,
        source_features=lambda: features_of(parts.method.backbone, parts.source),
        target_features=lambda: features_of(parts.method.backbone, parts.target),
    )


def _head(parts: Parts, folder: Path) -> str:
    args, noisy = parts.args, parts.noisy
    matrix = noisy.realised_transition
    spread = f"diagonal of the realised matrix {matrix.diagonal().min():.2f} to {matrix.diagonal().max():.2f}"
    parameters = sum(p.numel() for p in parts.method.parameters())
    given = "no simulated noise" if args.noise == "none" else f"{args.noise} {args.rate:g} ({args.noise_mode}, seed {args.noise_seed})"
    return "\n".join([
        f"{args.method} on {args.data}: {parts.data.source_name} ({len(parts.source)} images) to "
        f"{parts.data.target_name} ({len(parts.target)} images{'' if parts.target.view.targets is not None else ', unlabelled'})",
        parts.data.split.table(),
        f"label noise: {given}; {noisy.is_flipped.sum()} of {len(noisy)} labels wrong, {noisy.realised_rate:.2%}; {spread}",
        f"{args.steps} steps of {args.batch_size} + {args.batch_size}: {args.steps * args.batch_size / len(parts.source):.1f} passes "
        f"over the source, {args.steps * args.batch_size / len(parts.target):.1f} over the target; {parameters:,} parameters on {parts.device}",
        f"files: {folder}",
    ])  # fmt: skip


def _progress_line(record: Dict[str, Any]) -> str:
    names = ("train_loss", "train_kept", "train_known", "os", "os_star", "unk", "h_score", "auroc", "predicted_unknown")
    shown = [f"{name.removeprefix('train_')} {record[name]:.3f}" for name in names if record.get(name) is not None]
    return f"step {record['step']:>5}  " + "  ".join(shown)


def _results(parts: Parts, last: Dict[str, Any], best: Dict[str, Any]) -> Dict[str, Any]:
    args = parts.args
    keys = ("method", "preset", "data", "source", "target", "split", "noise", "rate", "noise_mode", "noise_seed", "seed", "steps",
            "batch_size", "lr", "arch", "freeze_backbone")  # fmt: skip
    results = {key: getattr(args, key) for key in keys}
    results.update(realised_rate=parts.noisy.realised_rate, realised_transition=parts.noisy.realised_transition.tolist())
    results.update({k: v for k, v in last["record"].items() if k != "step"})
    if best:
        results.update(oracle_os=best["os"], oracle_step=best["step"])
    return results


def _write_outputs(parts: Parts, folder: Path, last: Dict[str, Any]) -> None:
    view = parts.target.view
    save_model(folder / "model.safetensors", parts.method, parts.frozen, _metadata(parts))
    write_predictions(
        folder / "predictions.csv", last["prediction"], np.arange(len(view)), view.paths, parts.data.split,
        parts.method.threshold, view.targets,
    )  # fmt: skip


def _metadata(parts: Parts) -> Dict[str, Any]:
    config = parts.config()
    keys = ("method", "hparams", "split", "arch", "freeze_backbone", "bottleneck", "image", "in_features", "data")
    return {key: config[key] for key in keys}


def _tail(report: Optional[Any], results: Dict[str, Any], folder: Path) -> str:
    files = f"files in {folder}: results.json, results.jsonl, predictions.csv, model.safetensors, config.json, env.json, tb/"
    if report is None:
        share = results["predicted_unknown"]
        return f"the target is unlabelled: {share:.1%} of its images were called unknown; see predictions.csv\n{files}"
    return f"{report.table()}\nlast step; best step on target labels (oracle): OS {results['oracle_os']:.3f} at step {results['oracle_step']}\n{files}"


def _test(args: argparse.Namespace) -> int:
    """Evaluate the model of a run folder on the target again."""
    if args.log is None:
        raise UserError("--phase test needs the run: --log FOLDER")
    metadata, tensors, _ = load_model(Path(args.log) / "model.safetensors")
    if args.method != metadata["method"]:
        args.method = metadata["method"]
    args.hp = [f"{name}={value}" for name, value in metadata["hparams"].items()]
    parts = build(args)
    try:
        parts.method.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the model in {args.log} does not fit these flags: {str(error).splitlines()[-1].strip()}") from None
    _, report = evaluate_domain(parts.method, parts.target)
    print("the target is unlabelled" if report is None else report.table())
    return 0
