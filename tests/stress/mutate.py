"""Plant one error at a time in a copy of the package and run the tests that should notice it; print the survivors.

    python tests/stress/mutate.py              all errors, some minutes
    python tests/stress/mutate.py cache eps    those whose names contain a word

The exit code is the number of survivors.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import List, NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Error(NamedTuple):
    """``old`` stands once in ``file`` of the package and is replaced by ``new``; ``tests`` are pytest's arguments."""

    name: str
    file: str
    old: str
    new: str
    tests: str


SEEDS, RUNS = "tests/training/test_seeds.py", "tests/training/test_run_dir.py"
TAMPERED, UNTRUSTED = "tests/training/test_tampered.py", "tests/cli/test_untrusted.py"
LONGHAND = "tests/alignment/test_divergence_longhand.py tests/alignment/test_losses.py"
MODULES = "tests/alignment/test_modules.py"
ERRORS = [
    Error("cache key without the weights", "training/frozen.py", " {state_digest(frozen)}", "", SEEDS),
    Error("target never reshuffled", "vision/datasets/sampling.py", "counter=[0, 0, 0, epoch]", "counter=[0, 0, 0, 0]", SEEDS),
    Error("source batch without the step", "vision/datasets/sampling.py", "counter=[0, 0, 0, step]", "counter=[0, 0, 0, 0]",
          "tests/vision/test_data.py -k balanced"),
    Error("dropout seed without the step", "training/fit.py", "(seed * 1_000_003 + step)", "(seed * 1_000_003)", SEEDS),
    Error("dropout never seeded", "training/fit.py", "set_seed((seed", "abs((seed", SEEDS),
    Error("weights never seeded", "training/build.py", "\n    torch.manual_seed(config.seed)\n", "\n", SEEDS),
    Error("no fsync before the rename", "io.py", "        _fsync(temporary)\n", "", "tests/test_io.py"),
    Error("no fsync of the folder", "io.py", "        _fsync(path.parent)", "        path.parent", "tests/test_io.py"),
    Error("results removed last", "training/recorder.py", '("results.json", "checkpoints/last.pt", *_OUTPUTS)',
          '("checkpoints/last.pt", *_OUTPUTS, "results.json")', SEEDS),
    Error("eps opened", "images.py", 'formats=(*FORMATS, "HEIF") if heif() else FORMATS', "formats=None",
          "tests/report/test_data_folder.py tests/vision/test_bad_images.py"),
    Error("ties suggest another class", "labels/audit.py", "own >= probs.max(1)", "own > probs.max(1)", SEEDS),
    Error("complete before the report", "training/trainer.py", "            if not config.no_report and self.write_report",
          "            self.recorder.finish(results)\n            if not config.no_report and self.write_report", RUNS),
    Error("foreign folder accepted", "training/run_dir.py", "    if foreign:\n", "    if not foreign:\n", RUNS),
    Error("signal after the report ignored", "training/trainer.py", "        if stop:\n            raise self.stopped(stop, c",
          "        if stop < 0:\n            raise self.stopped(stop, c", RUNS),
    Error("evaluation of the resumed step twice", "training/recorder.py", 'line["step"] < step]', 'line["step"] <= step]',
          "tests/training/test_resume.py -k 'torn or same_bytes'"),
    Error("any step of a checkpoint", "training/trainer.py", "not whole or not 0 <= self.start <= self.config.steps", "not whole",
          TAMPERED),
    Error("momentum of another shape", "training/players.py", "momentum is not None and", "momentum is None and", TAMPERED),
    Error("text for a number", "io.py", 'if name != "scenario" and not', 'if name == "scenario" and not', TAMPERED),
    Error("pickles run", "training/checkpoint.py", "weights_only=True", "weights_only=False", UNTRUSTED),
    Error("a model names what is imported", "training/saved_run.py", '(metadata["method"], import_code)',
          '(metadata["method"], True)', UNTRUSTED),
    Error("formulas in CSV", "io.py", "\"'\" + text if text[:1] in _FORMULA else text", "text",
          "tests/labels/test_audit.py -k any_names tests/cli/test_hostile_names.py"),
    Error("a second run in a folder", "training/run_dir.py", "        except LockHeld:\n            raise LockHeld(",
          "        except LockHeld:\n            str(", RUNS),
    Error("H-score is the mean", "evaluation/openset.py", "2 * os_star * unk / (os_star + unk) if", "(os_star + unk) / 2 if",
          "tests/evaluation/test_evaluation.py"),
    Error("OS without unknown", "evaluation/openset.py", "os=float(np.mean(list(recall.values())))", "os=os_star",
          "tests/evaluation/test_evaluation.py"),
    Error("pair noise backwards", "vision/datasets/noises.py", "np.roll(eye, 1, axis=1)", "np.roll(eye, -1, axis=1)",
          "tests/vision/test_noise.py"),
    Error("symmetric noise keeps its class", "vision/datasets/noises.py", "rate / (num_classes - 1))", "rate / num_classes)",
          "tests/vision/test_noise.py"),
    Error("crs with itself", "alignment/quantities.py", "(every - own) * (-2", "every * (-2", LONGHAND),
    Error("joint loss without lambda", "alignment/selection.py", "loss + lam * divergences", "loss + divergences", LONGHAND),
    Error("entropy threshold", "methods/rules.py", "share * math.log(num_classes)", "share", "tests/methods/test_rules.py"),
    Error("the heads move in Step C", "methods/divergence.py", '{"together": self.hparams.eta * together}, "G")',
          '{"together": self.hparams.eta * together}, "G", "C")', LONGHAND),
    Error("audit of corrected labels", "training/trainer.py", 'given = None if config.labels_by == "given" else torch',
          "given = None if True else torch", "tests/labels/test_treatment.py"),
    Error("audit of true labels", "training/outputs.py", "audit_labels(outputs.audit, noisy.targets",
          "audit_labels(outputs.audit, noisy.clean_targets", "tests/labels/test_treatment.py"),
    Error("hold-out without the seed", "training/build.py", "hold_out(config.hold_out, config.seed)", "hold_out(config.hold_out)",
          "tests/training/test_validate.py"),
    Error("hold-out without the votes", "vision/datasets/noisy.py", '"truth", "votes", "agreement"', '"truth"',
          "tests/vision/test_labels_file.py"),
    Error("held-out likelihood of other rows", "labels/em.py", "[y[~seen]]\n            if",
          "[y[seen][:(~seen).sum()]]\n            if", "tests/labels/test_labels.py"),
    Error("hidden labels take part", "labels/em.py", "            new *= weight", "            new *= 1",
          "tests/labels/test_labels.py"),
    Error("temperature by hidden labels", "labels/em.py", "evidence if seen is None else evidence[seen]", "evidence",
          "tests/labels/test_labels.py"),
    Error("a label is evidence for itself", "labels/em.py", "np.float32)[y] - r, 0)\n    off", "np.float32)[y], 0)\n    off",
          "tests/labels/test_labels.py"),
    Error("groups by one argsort", "target/diagnosis.py", 'np.argsort(np.argsort(-np.bincount(member), kind="stable"))',
          'np.argsort(-np.bincount(member), kind="stable")', "tests/target/test_target_model.py"),
    Error("text that is not escaped", "report/templating.py", "    return escape(text if", "    return Markup(text if",
          "tests/report/test_page.py -k 'escaped or edited'"),
    Error("threads decode on after an error", "vision/datasets/decoding.py", "while not ended.is_set() and (", "while (",
          "tests/vision/test_cache.py -k interrupted_threads"),
    Error("moves out of the data folder", "vision/datasets/moves.py", "    if root not in old.parents:", "    if False:",
          "tests/vision/test_moves.py"),
    Error("a link is replaced", "io.py", "if path.is_symlink() else path", "if False else path", "tests/test_io.py"),
    Error("ties of the small losses", "alignment/selection.py", "stable=True", "stable=False", MODULES),
    Error("dead zone with its border", "alignment/separation.py", "gap > m", "gap >= m", MODULES),
    Error("a share lost to rounding", "alignment/selection.py", "* batch + 1e-9", "* batch", MODULES),
    Error("push together where unknown", "alignment/minimax.py", "- self.known_margin", "+ self.known_margin", MODULES),
    Error("source features of Step B with a graph", "methods/divergence.py", "with torch.no_grad():\n            f_s",
          "if True:\n            f_s", LONGHAND),
    Error("audit of what credo learns", "methods/divergence.py", "self.audit is not None and labels", "False and labels",
          "tests/methods/test_credo.py -k audit"),
    Error("no momentum", "training/players.py", "lr=lr, momentum=momentum,", "lr=lr, momentum=0.0,", LONGHAND),
]  # fmt: skip


def plant(error: Error, copy: Path) -> str:
    """Write the error into the copy; returns the file's right content."""
    file = copy / "tllib_ext" / error.file
    right = file.read_text()
    if right.count(error.old) != 1:
        raise SystemExit(f"{error.name}: {error.old!r} stands {right.count(error.old)} times in {error.file}, expected once")
    file.write_text(right.replace(error.old, error.new))
    return right


def run_tests(copy: Path, tests: str, log: Path) -> int:
    """pytest's exit code in a forked process, which has imported the libraries but nothing of the package."""
    import shlex

    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        sys.path[:] = [
            str(copy),
            *(place for place in sys.path if Path(place or ".").resolve() not in (ROOT, ROOT / "tests/stress")),
        ]
        import pytest

        code = pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *shlex.split(tests)])
        import tllib_ext

        own = Path(tllib_ext.__file__).is_relative_to(copy)
        os._exit(int(code) if own else 99)
    finally:
        os._exit(98)


def main(words: List[str]) -> int:
    """Plant the chosen errors one after the other."""
    import hypothesis  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pytest  # noqa: F401
    import sklearn.manifold  # noqa: F401
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    chosen = [error for error in ERRORS if not words or any(word in error.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".*cache", "__pycache__", "build", "*.egg-info", "runs")
        shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
        for error in chosen:
            begin, right = time.monotonic(), plant(error, copy)
            code = run_tests(copy, error.tests, Path(folder) / "log")
            (copy / "tllib_ext" / error.file).write_text(right)
            word = {0: "SURVIVED", 1: "caught"}.get(code, f"pytest ended with {code}")
            print(f"{error.name:45} {word}  {time.monotonic() - begin:.0f} s", flush=True)
            if code != 1:
                survivors.append(error.name)
                print((Path(folder) / "log").read_text()[-600:])
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} caught; survivors: {', '.join(survivors) or 'none'}")
    return len(survivors)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
