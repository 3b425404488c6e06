"""``report.html``: one page about one run that needs no other file, no script and no network."""

import shlex
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np

from tllib_ext.evaluation.openset import DEFINITIONS, OpenSetReport
from tllib_ext.io import write_text
from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.gallery import Thumbnails, class_examples, class_groups, suspects, unknown_groups
from tllib_ext.report.plots import plot_run
from tllib_ext.report.run_files import RunFiles, read_run
from tllib_ext.report.style import save
from tllib_ext.report.templating import data_address, png_picture, render
from tllib_ext.typing import Record

__all__ = ["page", "write_report"]

#: plot -> caption; also its alternative text.
CAPTIONS: Dict[str, str] = {
    "density": "Gaussian kernel density of the score (Scott's rule); an image right of the threshold is predicted unknown.",
    "threshold": "The metrics of the same predictions at every other threshold; the dashed line is the method's threshold.",
    "confusion": "One row per true class; the private classes of the target are the row unknown.",
    "metrics": "The last point is the result of the run.",
    "training": "Means over the steps since the previous evaluation.",
    "tsne": "A random part of both domains; close points have similar features.",
    "suspects": "The most suspicious labels are at the right.",
    "transition": "The estimate is made from features and given labels alone.",
}
#: bytes of a page, of its thumbnails (before base64), and of the markup of one image in a list.
_PAGE, _THUMBNAILS, _ROW = 7_500_000, 2_200_000, 250
_HEADLINE = (("os", "OS"), ("os_star", "OS*"), ("unk", "UNK"), ("h_score", "H-score"), ("auroc", "AUROC"))
_AUDIT = {
    "suspects_auroc": "area under the ROC curve of the suspicion, wrong labels positive",
    "suspects_precision": "share of wrong labels among the n most suspicious, n being the number of wrong labels",
    "suggestion_accuracy": "share of wrong labels whose suggested label is the true one",
}


def write_report(folder: Union[str, Path], results: Optional[Record] = None) -> Path:
    """Draw ``plots/*.png`` and ``report.html`` from the files of a run; returns the page's path.

    Args:
        folder (str or Path): the run folder
        results (dict, optional): the contents of ``results.json``, for a run that has not written it yet
    """
    run = read_run(folder, results)
    plots = run.folder / "plots"
    plots.mkdir(exist_ok=True)
    files = {}
    for name, figure in plot_run(run).items():
        files[name] = plots / f"{name}.png"
        save(figure, files[name])
    write_text(run.folder / "report.html", page(run, files))
    return run.folder / "report.html"


def page(run: RunFiles, plots: Dict[str, Path]) -> str:
    """The page of a run.

    Args:
        run (RunFiles): the contents of the run folder
        plots (dict): name -> PNG file, names as in :data:`CAPTIONS`
    """
    folder, split, p = DataFolder(run.config, run.folder), run.split, run.predictions
    by_class, unknown, doubtful = class_groups(run, folder), unknown_groups(run, folder), suspects(run, folder)
    examples = class_examples(run, sorted({k for s in doubtful for k in (s.given, s.suggested)})[:300])
    wanted = [list(examples.values()), [s.path for s in doubtful]]
    wanted += [[item.path for item in group.items] for group in (*by_class, *unknown)]
    pictures = {name: png_picture(file.read_bytes()) for name, file in plots.items()}
    listed = [item for group in (*by_class, *unknown) for item in group.items]
    text = sum(len(item.link) + len(item.name) + _ROW for item in (*listed, *3 * doubtful))
    room = _PAGE - text - sum(len(picture.address) for picture in pictures.values())
    thumbnails = Thumbnails(folder, wanted, size=min(_THUMBNAILS, max(room * 3 // 4, 0)))
    predicted, source = np.bincount(p.predicted, minlength=split.num_source + 1), run.suspects
    report = run.report
    return render(
        "report.html.j2",
        title=f"{run.config.get('method')}: {run.config.get('source_name')} to {run.config.get('target_name')}",
        summary=_summary(run),
        tiles=_tiles(run),
        class_groups=by_class,
        absent=[name for k, name in enumerate(split.source_classes) if not predicted[k]],
        unknown_groups=unknown,
        num_unknown=int(predicted[split.unknown]),
        threshold=run.threshold,
        audited=source is not None,
        suspects=doubtful,
        num_suspects=0 if source is None else int((source.suspicion > 0).sum()),
        num_source=0 if source is None else len(source.index),
        truth_known=source is not None and source.clean is not None,
        label_rate=_label_rate(run),
        classes=split.source_classes,
        examples=examples,
        thumbnails=thumbnails,
        addresses=[data_address(data, "image/jpeg") for data in thumbnails.data],
        pictures=pictures,
        captions=CAPTIONS,
        report=report,
        metrics=[] if report is None else _metrics(run, report),
        recalls=[] if report is None else _recalls(report),
        command=_command(run),
        settings=_settings(run),
    )


def _percent(value: Optional[float]) -> str:
    return "not defined" if value is None else f"{100 * value:.1f} %"


def _summary(run: RunFiles) -> str:
    config, split = run.config, run.split
    noise = "labels as given"
    if config.get("noise") != "none":
        noise = f"{config.get('noise')} label noise {config.get('rate')}, {_percent(run.true_rate)} of the labels wrong"
    if run.report is None:
        classes = f"{split.num_source} source classes"
    else:
        counts = [len(part) or "none" for part in (split.shared, split.source_private, split.target_private)]
        parts = f"{counts[0]} shared classes, {counts[1]} only in the source, {counts[2]} only in the target"
        classes = f"{split.scenario} label sets: {parts}"
    images = f"{len(run.predictions.index)} {'' if run.report else 'unlabelled '}target images"
    return f"{config.get('data')}, {classes}; {noise}; {config.get('steps')} steps, seed {config.get('seed')}; {images}."


class Tile(NamedTuple):
    """A number at the top of the page."""

    label: str
    value: str
    text: str


def _tiles(run: RunFiles) -> List[Tile]:
    report, predicted = run.report, run.predictions.predicted
    unknown, classes = predicted == run.split.unknown, len(set(predicted.tolist()) - {run.split.unknown})
    tiles = [
        Tile("new images", str(len(predicted)), f"{np.count_nonzero(~unknown)} of them assigned to {classes} classes"),
        Tile("unknown", str(unknown.sum()), f"{_percent(unknown.mean())} of the new images"),
    ]
    if run.suspects is not None:
        above = run.suspects.suspicion > 0
        tiles.append(Tile("doubtful labels", str(above.sum()), f"of {len(above)} source labels have a suspicion above 0"))
    if report is not None:
        tiles += [Tile(label, _percent(getattr(report, key)), DEFINITIONS[key].split(": ", 1)[-1]) for key, label in _HEADLINE]
    return tiles


def _label_rate(run: RunFiles) -> str:
    if run.label_model is None:
        return ""
    rate = f"{run.label_model['rate']:.1%} ± {run.label_model['rate_std']:.1%}"
    true = "" if run.true_rate is None else f" (simulated: {run.true_rate:.1%})"
    return f"Estimated share of wrong labels, without any true label: {rate}{true}."


def _metrics(run: RunFiles, report: OpenSetReport) -> List[Tuple[str, Optional[float], str]]:
    rows = [(name, getattr(report, name), text) for name, text in DEFINITIONS.items()]
    best = f"OS of the best evaluation, chosen with target labels (step {run.results.get('oracle_step')}): not a result"
    more = {**_AUDIT, "oracle_os": best}
    return rows + [(name, run.results[name], text) for name, text in more.items() if run.results.get(name) is not None]


def _recalls(report: OpenSetReport) -> List[Record]:
    rows = []
    for name, (recall, count) in report.per_class.items():
        row = report.confusion[report.label_names.index(name)]
        wrong = [k for k in np.argsort(-row, kind="stable") if row[k] and report.label_names[k] != name][:2]
        confused = ", ".join(f"{report.label_names[k]} ({row[k]})" for k in wrong)
        rows.append({"name": name, "recall": recall, "count": count, "confused": confused})
    return rows


def _command(run: RunFiles) -> str:
    """The command of the run with its folder and ``--overwrite``; empty for a run started from Python."""
    words = [str(word) for word in run.config.get("command") or [] if word not in ("--overwrite", "--resume")]
    if run.config.get("command") is None:
        return ""
    if run.config.get("log") is None:
        words += ["--log", str(run.folder)]
    return "python examples/noisy_unida.py " + shlex.join([*words, "--overwrite"])


def _settings(run: RunFiles) -> Dict[str, Record]:
    env = {key: value for key, value in run.env.items() if key != "versions"}
    return {
        "Environment": {**env, **(run.env.get("versions") or {})},
        "Hyper-parameters": run.config.get("hparams") or {},
        "All settings": {key: value for key, value in run.config.items() if key not in ("split", "hparams", "command")},
        "Label sets": {key: ", ".join(names) for key, names in run.split.to_dict().items()},
    }
