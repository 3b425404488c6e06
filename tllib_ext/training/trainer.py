"""One run from its parts to its files."""

import time
from contextlib import closing
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Tuple

import numpy as np
import torch
from tqdm import tqdm

from tllib_ext.distributed import gather_objects, mean_numbers, rank, world_size
from tllib_ext.errors import NonFiniteLoss, StopRequested, UserError, say
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.evaluation.openset import OpenSetReport
from tllib_ext.io import remove_temporary_files
from tllib_ext.methods.base import Prediction
from tllib_ext.methods.loss_history import LossHistory
from tllib_ext.training.answer_outputs import prepare_answers, write_prepared
from tllib_ext.training.build import RunParts
from tllib_ext.training.checkpoint import load_checkpoint, save_checkpoint, save_model
from tllib_ext.training.console import head, progress_line, tail
from tllib_ext.training.domain import Steps
from tllib_ext.training.fit import Meter, fit
from tllib_ext.training.further import further_results
from tllib_ext.training.outputs import compute_outputs, write_outputs
from tllib_ext.training.players import SGDPlayers, with_warmup
from tllib_ext.training.precision import Precision
from tllib_ext.training.predict import predict_domain, report_on
from tllib_ext.training.prepare import prepare
from tllib_ext.training.recorder import Recorder
from tllib_ext.training.run_dir import Lock, Stopper, check_folder, differences, read_config, run_folder
from tllib_ext.training.target_output import write_target_model
from tllib_ext.training.validate import validators
from tllib_ext.typing import Record

__all__ = ["Outcome", "train"]


class Outcome(NamedTuple):
    """A finished run: its folder, the content of ``results.json``, and the report of the last evaluation."""

    folder: Path
    results: Record
    report: Optional[OpenSetReport]


def train(parts: RunParts, write_report: Optional[Callable[[Path, Record], object]] = None) -> Outcome:
    """Train, evaluate, write the run folder.

    Args:
        parts (RunParts): the run, built and checked
        write_report (callable, optional): makes plots and page from the folder and the content of ``results.json``

    An unfinished run of the same settings in the folder continues from its last checkpoint.
    """
    # One process decides: the others could see a folder that the first has just made.
    folder = gather_objects(run_folder(parts.config))[0]
    lock = None
    try:
        if rank() == 0:
            check_folder(folder)
            lock = Lock(folder)
            remove_temporary_files(folder)
        with Stopper() as stopper:
            training = _Training(parts, folder, stopper, write_report)
            with closing(training.recorder):
                return training.run()
    finally:
        if lock is not None:
            lock.release()


def _print(text: str) -> None:
    say(text, tqdm.write)


class _Training:
    """The state of one call of :func:`train`."""

    def __init__(
        self, parts: RunParts, folder: Path, stopper: Stopper, write_report: Optional[Callable[[Path, Record], object]] = None
    ):
        self.write_report = write_report
        config, method = parts.config, parts.method
        self.parts, self.config, self.method, self.folder, self.stopper = parts, config, method, folder, stopper
        self.precision = Precision(config.precision, parts.device)
        self.say: Callable[[str], None] = _print if rank() == 0 else (lambda text: None)
        self.recorder = Recorder(folder, active=rank() == 0)
        state = gather_objects(self._unfinished() if rank() == 0 else None)[0]
        self.say(head(parts, folder))
        given = None if config.labels_by == "given" else torch.from_numpy(parts.noisy.targets).to(parts.device)
        self.audit = method.audit = LossHistory(len(parts.noisy), parts.data.split.num_source, parts.device, given)
        self.samplers = prepare(
            method, parts.source, parts.target, parts.noisy.targets, steps=config.steps, rate=parts.noisy.rate,
            batch=config.batch_size * world_size(), seed=config.seed, say=self.say, labels_by=config.labels_by,
            unknown_share=config.unknown_share,
        )  # fmt: skip
        self.play = SGDPlayers(
            method.players(), config.lr, config.steps, config.momentum, config.weight_decay, scaler=self.precision.scaler,
            schedule=with_warmup(method.lr_factor, config.lr_warmup),
        )  # fmt: skip
        self.play.check_at_once = config.on_nonfinite == "skip"
        self.meter, self.start, self.skipped = Meter(), 0, 0
        self.last: Record = {}
        self.saved_at = time.monotonic()
        if state is None:
            self.recorder.start(parts.record())
        else:
            self._restore(state)

    def _unfinished(self) -> Optional[Record]:
        """The checkpoint to go on from, after making sure that it belongs to this run."""
        config, record = self.config, read_config(self.folder)
        changed = differences(record, self.parts.record()) if record is not None else []
        # An interrupted run that was to replace another one continues by the same command.
        replaced = config.overwrite and (changed or (self.folder / "results.json").exists())
        if record is None or replaced:
            if config.resume:
                raise UserError(f"resume=True: there is no run in {self.folder} to continue")
            self.recorder.clear()
            return None
        if changed:
            shown = "; ".join(changed[:3])
            raise UserError(
                f"{self.folder} holds another, unfinished run ({shown}): choose another log folder, or add overwrite=True"
            )
        try:
            state = load_checkpoint(self.folder)
        except UserError:
            if not config.overwrite:
                raise
            self.recorder.clear()
            return None
        if state is None and config.resume:
            raise UserError(f"resume=True: {self.folder} has no checkpoint yet; leave out resume to start it anew")
        if state is None:
            self.recorder.keep_before(0)
        return state

    def _restore(self, state: Record) -> None:
        try:
            self.method.load_state_dict(state["method"])
            self.play.load_state_dict(state["play"])
            self.meter.load_state_dict(state["meter"][rank()])
            self.audit.load_state_dict(state["audit"][rank()])
            self.start, self.skipped = state["step"], state["skipped"]
            whole = type(self.start) is int and type(self.skipped) is int
            if not whole or not 0 <= self.start <= self.config.steps or self.skipped < 0:
                raise ValueError(f"step {state['step']} of {self.config.steps}, {state['skipped']} skipped")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"the checkpoint in {self.folder} does not fit this run: {reason}; remove it to start anew") from None
        self.recorder.keep_before(self.start)
        self.say(f"going on at step {self.start} of {self.config.steps} from {self.folder / 'checkpoints' / 'last.pt'}")

    def save(self, done: int, name: str = "last", **more: Any) -> None:
        """Write a checkpoint; every process takes part."""
        # One audit per process: added up in another order, its sums would differ in the last bit. And one meter.
        audit = gather_objects({key: value.cpu() for key, value in self.audit.state_dict().items()})
        meter = gather_objects(self.meter.state_dict())
        if rank() == 0:
            state = {"step": done, "method": self.method.state_dict(), "play": self.play.state_dict(), "audit": audit,
                     "meter": meter, "skipped": self.skipped, **more}  # fmt: skip
            save_checkpoint(self.folder, state, self.config.keep, name)
        self.saved_at = time.monotonic()

    def run(self) -> Outcome:
        """The loop, then the outputs."""
        config, parts = self.config, self.parts
        steps = range(self.start, config.steps)
        source, target = (domain.train_batches(Steps(sampler, steps.start, steps.stop, rank(), world_size()))
                          for domain, sampler in zip((parts.source, parts.target), self.samplers))  # fmt: skip
        if self.start and self.evaluation_due(self.start):  # checkpoints are written before the evaluation of their step
            self.evaluate(self.start)
        fit(self.method, self.play, source, target, steps, config.seed, self.precision.autocast, self.after_step, self.meter,
            self.nonfinite)  # fmt: skip
        # The first process's: another one could read the recorded lines before they are written.
        results = gather_objects(self.results() if rank() == 0 else {})[0]
        outputs = compute_outputs(parts, with_map=not config.no_report)
        before, kept = self.last["prediction"], None
        space, answered = prepare_answers(parts, before)
        if answered is not None:
            after, kept = answered.prediction(), answered.others
            self.last.update(prediction=after, report=report_on(after, self.method, parts.target, kept))
        results.update(further_results(parts, self.last["prediction"], kept))
        if rank() == 0:
            _write_outputs(parts, self.folder, before)
            results.update(write_outputs(parts, self.folder, outputs))
            shares, lines = write_target_model(parts, self.folder, before, estimate=not config.no_report)
            results.update(shares)
            self.say("\n".join(lines))
            results.update(write_prepared(self.folder, space, answered, self.say))
            if not config.no_report and self.write_report is not None:
                self.write_report(self.folder, results)
        # Last: a run that is stopped in between continues from its last checkpoint and makes the other files again.
        if stop := max(gather_objects(self.stopper.signal or 0)):
            raise self.stopped(stop, config.steps)
        self.recorder.finish(results)
        self.say(tail(self.last["report"], results, self.folder))
        return Outcome(self.folder, gather_objects(results)[0], self.last["report"])

    def stopped(self, number: int, done: int) -> StopRequested:
        """What ends a run after a signal."""
        return StopRequested(number, f"stopped after step {done}, saved in {self.folder}; the same command goes on from there")

    def evaluation_due(self, done: int) -> bool:
        """Whether the target is evaluated after this many steps."""
        return done % self.config.eval_every == 0 or done == self.config.steps

    def after_step(self, done: int) -> None:
        """Checkpoint, signals, evaluation, in this order: a long evaluation does not delay a stop."""
        config = self.config
        stop, late = self.agreed(done)
        if done % config.checkpoint_every == 0 or done == config.steps or stop or late:
            self.check_pending()
            self.save(done)
        if stop:
            raise self.stopped(stop, done)
        if self.evaluation_due(done):
            self.evaluate(done)

    def agreed(self, done: int) -> Tuple[Optional[int], bool]:
        """The signal that asked for a stop, and whether a checkpoint is late; several processes agree every ten steps."""
        late = (time.monotonic() - self.saved_at) / 60 > self.config.checkpoint_minutes
        if world_size() == 1:
            return self.stopper.signal, late
        if done % 10:
            return None, False
        said = gather_objects((self.stopper.signal or 0, late))
        return max(number for number, _ in said) or None, any(late for _, late in said)

    def check_pending(self) -> None:
        """Look at losses whose check was put off: a checkpoint of NaN must not take the place of a good one."""
        try:
            self.play.check_pending()
        except NonFiniteLoss as error:
            self.nonfinite(error)

    def nonfinite(self, error: NonFiniteLoss) -> None:
        """Save the state for a look and stop, or (``on_nonfinite="skip"``) count and go on for a while."""
        self.skipped += 1
        if self.config.on_nonfinite == "skip" and self.skipped <= max(10, self.config.steps // 100):
            self.say(f"step {error.step} dropped: {error} (number {self.skipped})")
            return
        images = [[self.parts.noisy.path(i) for i in self.samplers[0](error.step)],
                  [self.parts.target.view.path(i) for i in self.samplers[1](error.step)]]  # fmt: skip
        self.save(error.step, "nonfinite", term=error.term, source_images=images[0], target_images=images[1])
        some = " and ".join(f"{', '.join(paths[:2])}, …" for paths in images)
        tries = f" (and {self.skipped - 1} steps were dropped before)" if self.skipped > 1 else ""
        more = f"{tries}; images {some}: all of them and the state are in {self.folder / 'checkpoints' / 'nonfinite.pt'}"
        raise NonFiniteLoss(error.term, error.step, error.value, more)

    def evaluate(self, done: int) -> None:
        """One evaluation of the whole target."""
        prediction = predict_domain(self.method, self.parts.target)
        if not all(np.isfinite(values).all() for values in (prediction.probs, prediction.score)):
            self.check_pending()
            raise NonFiniteLoss("score of the target images", done)
        report = report_on(prediction, self.method, self.parts.target)
        record: Record = {"step": done, **{f"train_{name}": value for name, value in mean_numbers(self.meter.read()).items()}}
        record.update({"predicted_unknown": float(np.mean(prediction.unknown))} if report is None else report.flat())
        record.update(validators(self.parts, prediction))
        labels, score = self.parts.target.view.targets, None if self.config.no_report else np.asarray(prediction.score)
        self.recorder.evaluation(record, score, None if labels is None else labels == self.method.split.unknown)
        self.say(progress_line(record))
        self.last = {"prediction": prediction, "report": report, "record": record}

    def told(self) -> str:
        """What the method was told, by what it read of its context, and whether it adapts without the source."""
        told = set(self.method.context.told) if self.method.context is not None else set()
        if self.config.labels_by != "given":  # a treatment estimates the rate, except for the one that drops large losses
            told = told - {"noise rate"} | ({"noise rate"} if self.config.labels_by == "small-loss" else set())
        answers = [f"{self.config.answers} answers"] * (self.config.answers is not None)
        return ", ".join([*sorted(told), *answers, *["no source"] * self.method.source_free])

    def results(self) -> Record:
        """``results.json``: the last evaluation, flat; the best one on target labels only under the name oracle."""
        config, noisy = self.config, self.parts.noisy
        keys = ("method", "preset", "labels_by", "data", "source", "target", "split", "noise", "rate", "noise_mode", "noise_seed",
                "seed", "steps", "batch_size", "lr", "arch", "train_from", "freeze_backbone", "bottleneck_lr_mult",
                "precision")  # fmt: skip
        results = {key: getattr(config, key) for key in keys}
        results["split"] = str(config.split)
        results.update(noisy.record())
        results["told"], results["trained"] = self.told(), not self.method.training_free
        results.update({key: value for key, value in self.last["record"].items() if key != "step"})
        results.update(processes=world_size(), skipped_steps=self.skipped, skipped_images=len(self.parts.skipped_images))
        scored = [line for line in self.recorder.lines() if line.get("os") is not None]
        if scored:
            best = max(scored, key=lambda line: line["os"])
            results.update(oracle_os=best["os"], oracle_step=best["step"])
        return results


def _write_outputs(parts: RunParts, folder: Path, prediction: Prediction) -> None:
    view = parts.target.view
    save_model(folder / "model.safetensors", parts.method, parts.frozen, parts.model_record())
    threshold, rows = parts.method.threshold, np.arange(len(view))
    write_predictions(folder / "predictions.csv", prediction, rows, view.paths, parts.data.split, threshold, view.targets)
