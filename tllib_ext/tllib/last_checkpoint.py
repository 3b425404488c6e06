"""Open-set metrics of the last checkpoint of a script of tllib, by several rules for unknown.

tllib's scripts keep the epoch that is best on target labels (``best.pth``); here the last one counts
(``latest.pth``).
"""

import copy
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from tllib_ext.errors import UserError, first_line
from tllib_ext.evaluation.openset import DEFINITIONS, OpenSetEvaluator, OpenSetReport
from tllib_ext.io import write_json
from tllib_ext.labels import estimate_labels
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.rules import EntropyRule, predict_unknown_class
from tllib_ext.modules.heads import mean_probabilities
from tllib_ext.report.table_formats import to_text
from tllib_ext.report.tables import make_table
from tllib_ext.split import LabelSplit
from tllib_ext.target import estimate_target
from tllib_ext.tllib.scenario import Scenario, ScriptRecord, TllibList, listed
from tllib_ext.typing import Record

__all__ = ["Outputs", "evaluate_last", "outputs_of", "predictions_of", "restore"]

#: the target model is fitted to data up to this length: seconds, not minutes
LIMIT = 20_000


class Outputs(NamedTuple):
    """Of a script's networks for a list of images: logits of every head, and the backbone's features."""

    logits: List[Tensor]
    features: Tensor


def evaluate_last(name: str, record: ScriptRecord, scenario: Scenario) -> Dict[str, OpenSetReport]:
    """Evaluate ``latest.pth``, print the table, write ``open_set.json``; returns the report of every rule.

    Args:
        name (str): of the method, for the table
        record (ScriptRecord): what the script used
        scenario (Scenario): what it ran on
    """
    file = None if record.checkpoints is None else record.checkpoints / "latest.pth"
    if file is None or not file.is_file() or not record.sources or not record.targets:
        raise UserError(f"{name} left no checkpoint latest.pth of a classifier and its data sets: nothing to evaluate")
    args, split = record.arguments, record.split
    networks = restore(record.networks, torch.load(file, map_location="cpu", weights_only=True), file)
    tests = record.targets[-len(listed(args.target)) :]  # tllib makes the sets that it tests on last
    batch, workers = int(getattr(args, "batch_size", 32)), int(getattr(args, "workers", 0))
    target = outputs_of(networks, tests, batch, workers)
    labels = np.concatenate([[label for _, label in dataset.samples] for dataset in tests])
    sources = [copy.copy(dataset) for dataset in record.sources]
    for dataset in sources:  # without the augmentation of training
        dataset.transform = tests[-1].transform
    given = np.concatenate([[label for _, label in dataset.samples] for dataset in sources])
    source = None if max(len(given), len(labels)) > LIMIT else outputs_of(networks, sources, batch, workers)
    has_own_class = type(networks[0]).__module__ == "tllib.alignment.osbp"
    seed = int(getattr(args, "seed", None) or 0)
    reports = {}
    for rule, prediction in predictions_of(target, split, source, given, has_own_class, seed).items():
        evaluator = OpenSetEvaluator(split)
        evaluator.update(prediction, labels, np.arange(len(labels)))
        reports[f"{name} ({rule})"] = evaluator.compute()
    task = f"{'+'.join(listed(args.source))}2{'+'.join(listed(args.target))}"
    noise = {} if scenario.noise is None else {"noise": scenario.noise.kind, "rate": scenario.noise.rate,
                                               "noise_seed": scenario.noise.seed}  # fmt: skip
    shared: Record = {"method": name, "task": task, "seed": args.seed, "split": str(split), **noise, "arch": args.arch,
                      "batch_size": batch, "epochs": args.epochs, "iters_per_epoch": args.iters_per_epoch,
                      "checkpoint": str(file)}  # fmt: skip
    records = [{"row": row, **shared, **report.flat()} for row, report in reports.items()]
    print(_table(records, task, scenario))
    write_json(file.parent.parent / "open_set.json", records)
    return reports


def restore(networks: Sequence[nn.Module], state: Record, file: Path) -> List[nn.Module]:
    """Load a checkpoint, of one network or of several by name, into the given ones that it fits, in its order."""
    parts = [state] if all(isinstance(value, Tensor) for value in state.values()) else list(state.values())
    chosen: List[nn.Module] = []
    for part in parts:
        fitting = [net for net in networks if net.state_dict().keys() == part.keys() and all(net is not c for c in chosen)]
        if not fitting:
            raise UserError(f"{file} fits none of the networks that the script evaluated: nothing to evaluate")
        fitting[0].load_state_dict(part)
        chosen.append(fitting[0].eval())
    return chosen


@torch.no_grad()
def outputs_of(networks: Sequence[nn.Module], datasets: Sequence[TllibList], batch: int = 32, workers: int = 0) -> Outputs:
    """Outputs for all images in list order: a classifier's, or those of the heads that follow a backbone.

    Args:
        networks (sequence of torch.nn.Module): a classifier with a ``backbone``, or a backbone and its heads
        datasets (sequence): lists of images, one after the other
        batch (int, optional): images at a time. Default: 32
        workers (int, optional): processes that read them. Default: 0
    """
    first, *heads = networks
    device = next(first.parameters()).device
    logits: List[List[Tensor]] = []
    features: List[Tensor] = []
    with _watched(getattr(first, "backbone", first), features):
        for images, *_ in DataLoader(ConcatDataset(cast(List[Dataset], datasets)), batch, num_workers=workers):
            output = first(images.to(device))
            logits.append([head(output).float().cpu() for head in heads] or [output.float().cpu()])
    return Outputs([torch.cat(head) for head in zip(*logits)], torch.cat(features))


@contextmanager
def _watched(backbone: nn.Module, features: List[Tensor]) -> Iterator[None]:
    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        features.append((output.mean((2, 3)) if output.dim() == 4 else output).float().cpu())

    handle = backbone.register_forward_hook(keep)
    try:
        yield
    finally:
        handle.remove()


def predictions_of(
    target: Outputs, split: LabelSplit, source: Optional[Outputs], given: np.ndarray, has_own_class: bool = False, seed: int = 0
) -> Dict[str, Prediction]:
    """What every rule says of the target images, by the rule's name.

    Args:
        target (Outputs): of the target images
        split (LabelSplit): the label sets
        source (Outputs, optional): of the source images; None leaves out the target model
        given (array): labels of the source images, possibly wrong
        has_own_class (bool): whether the last logit was trained to mean unknown. Default: False
        seed (int, optional): of the target model. Default: 0
    """
    k = split.num_source
    probs = mean_probabilities([logits[:, :k] for logits in target.logits])
    found = {"entropy": EntropyRule(k).from_probs(probs)}
    if source is not None and bool(torch.isfinite(source.features).all() and torch.isfinite(target.features).all()):
        x = source.features.numpy()
        try:
            known = estimate_labels(x, given, k, seed).responsibilities
            model = estimate_target(x, known, target.features.numpy(), seed)
            score = torch.from_numpy(np.ascontiguousarray(model.posterior[:, -1])).float()
            found["target-model"] = Prediction(probs, score, score > 0.5)
        except UserError as error:
            print(f"no target model: {first_line(error)}")
    if has_own_class:
        found["own class"] = predict_unknown_class(target.logits[0], split.unknown)
    return found


def _table(records: Sequence[Record], task: str, scenario: Scenario) -> str:
    first = records[0]
    table = make_table(records, "os", [record["row"] for record in records], [task], title=scenario.title)
    table.legend = [
        f"{DEFINITIONS['os']}; in %",
        f"last checkpoint, after {first['epochs']} x {first['iters_per_epoch']} iterations, batch {first['batch_size']} per"
        f" domain; {first['arch']}; label sets {first['split']}; seed {first['seed']}",
    ]
    names = {"os": "OS", "os_star": "OS*", "unk": "UNK", "h_score": "H-score", "auroc": "AUROC"}
    for record in records:
        numbers = [f"{label} {100 * record[key]:.1f}" for key, label in names.items() if record[key] is not None]
        table.legend.append(f"{record['row']}: {', '.join(numbers)}")
    return to_text(table)
