"""``report.html``: one page about one run that needs no other file, no script and no network.

Class and file names are data: every piece of text passes :func:`~tllib_ext.report.gallery.escape`, and the page forbids
scripts and outside addresses to the browser besides.
"""

import base64
import shlex
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from tllib_ext.evaluation.openset import DEFINITIONS
from tllib_ext.report.galleries import called_unknown, most_suspicious, predicted_classes
from tllib_ext.report.gallery import Thumbnails, escape
from tllib_ext.report.page_style import CSS
from tllib_ext.report.run_files import RunFiles

__all__ = ["page"]

#: plot -> caption; also the text that stands for the picture.
CAPTIONS: Dict[str, str] = {
    "density": "Gaussian kernel density of the score (Scott's rule); right of the threshold an image is called unknown.",
    "threshold": "Every other threshold on the same predictions; the dashed line is the one the method used.",
    "confusion": "One row per true class; private classes are the one row unknown.",
    "metrics": "The last point is the result of the run.",
    "training": "What the method reports of its own losses and selections.",
    "tsne": "A random part of both domains; close points have similar features.",
    "suspects": "The most suspicious labels are at the right.",
    "suspects_roc": "The labels were made wrong on purpose, so the truth is known.",
    "transition": "What the label model believes, from features and given labels alone.",
    "transition_true": "What was done to the labels.",
    "label_model": "The rounds of the winning estimate.",
}
_HEADLINE = (("os", "OS"), ("os_star", "OS*"), ("unk", "UNK"), ("h_score", "H-score"), ("auroc", "AUROC"))


def page(run: RunFiles, plots: Dict[str, Path]) -> str:
    """The page of a run.

    Args:
        run (RunFiles): what the files say
        plots (dict): name -> PNG file, names as in :data:`CAPTIONS`
    """
    config, thumbnails = run.config, Thumbnails(run.has_images)
    title = f"{config.get('method')}: {config.get('source_name')} to {config.get('target_name')}"
    sections = [
        ("numbers", "Numbers", _numbers(run)),
        ("unknown", "Known or unknown?", _plots(plots, "density", "threshold") + called_unknown(run, thumbnails)),
        ("suspects", "Source labels that look wrong", _suspects(run, plots, thumbnails)),
        ("classes", "Classes", _classes(run, plots) + predicted_classes(run, thumbnails)),
        ("training", "Training", _plots(plots, "metrics", "training", "tsne")),
        ("run", "The run", _run(run)),
    ]
    sections = [(name, heading, body) for name, heading, body in sections if body]
    links = "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections)
    body = "".join(f'<section id="{name}"><h2>{heading}</h2>{text}</section>' for name, heading, text in sections)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{_summary(run)}</p><nav>{links}</nav></header>"
        f"{_tiles(run)}{body}</main></body></html>\n"
    )


def _summary(run: RunFiles) -> str:
    config, names = run.config, run.split
    noise = "labels as they are"
    if config.get("noise") != "none":
        noise = f"{config.get('noise')} label noise {config.get('rate')}, {_percent(run.true_rate)} of the labels wrong"
    if run.report is None:  # who could know what is in it
        classes = f"{names.num_source} classes, of which the target may hold any, and others"
    else:
        counts = [len(part) or "none" for part in (names.shared, names.source_private, names.target_private)]
        parts = f"{counts[0]} shared classes, {counts[1]} only in the source, {counts[2]} only in the target"
        classes = f"{names.scenario} label sets: {parts}"
    return escape(
        f"{config.get('data')}, {classes}; {noise}; {config.get('steps')} steps, seed {config.get('seed')}; "
        f"{len(run.predictions.index)} target images{'' if run.report else ', unlabelled'}."
    )


def _percent(value: Optional[float]) -> str:
    return "not defined" if value is None else f"{100 * value:.1f} %"


def _tiles(run: RunFiles) -> str:
    report, unknown = run.report, run.predictions.predicted == run.split.unknown
    tiles = [("called unknown", _percent(unknown.mean()), f"{unknown.sum()} of {len(unknown)} target images")]
    if report is not None:
        tiles = [(label, _percent(getattr(report, key)), DEFINITIONS[key].split(": ", 1)[-1]) for key, label in _HEADLINE]
    if run.results.get("suspects_auroc") is not None:
        text = f"AUROC; {_percent(run.results.get('suspects_precision'))} precision at the noise rate"
        tiles.append(("wrong labels", _percent(run.results["suspects_auroc"]), text))
    elif run.suspects is not None:
        above = run.suspects.suspicion > 0
        tiles.append(("suspicious labels", str(above.sum()), f"of {len(above)} source labels have a suspicion above 0"))
    cells = "".join(f"<li><i>{label}</i><b>{escape(value)}</b><span>{escape(text)}</span></li>" for label, value, text in tiles)
    return f'<ul class="tiles">{cells}</ul>'


def _numbers(run: RunFiles) -> str:
    report = run.report
    if report is None:
        return "<p>The target has no labels, so nothing can be measured on it: see below what its images were called.</p>"
    rows = [[name, _percent(getattr(report, name)), text] for name, text in DEFINITIONS.items()]
    chosen = f"chosen with target labels (step {run.results.get('oracle_step')}): no result"
    more = {"suspects_auroc": "area under the ROC curve of the suspicion, wrong labels positive",
            "suspects_precision": "wrong labels among the n most suspicious, n being the number of wrong labels",
            "suggestion_accuracy": "wrong labels whose suggested label is the true one",
            "oracle_os": f"OS of the best evaluation, {chosen}"}  # fmt: skip
    rows += [[name, _percent(run.results[name]), text] for name, text in more.items() if run.results.get(name) is not None]
    note = "The numbers are of the last step."
    if report.empty_classes:
        note += f" Shared classes without a target image, left out of every mean: {', '.join(report.empty_classes)}."
    return f"<p>{escape(note)}</p>" + _table(["metric", "value", "definition"], rows, numeric=(1,))


def _table(head: List[str], rows: List[List[Any]], numeric: Any = ()) -> str:
    kinds = [' class="n"' if column in numeric else "" for column in range(len(head))]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, head))
    lines = ["".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row)) for row in rows]
    lines = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="numbers"><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>'


def _plots(plots: Dict[str, Path], *names: str, wide: bool = False) -> str:
    figures = []
    for name in names:
        if name in plots:
            text = escape(CAPTIONS[name])
            data = base64.b64encode(plots[name].read_bytes()).decode("ascii")
            picture = f'<img src="data:image/png;base64,{data}" alt="{text}">'
            figures.append(f"<figure{' class=wide' * wide}>{picture}<figcaption>{text}</figcaption></figure>")
    full = " full" if wide and len(figures) == 1 else ""
    return f'<div class="plots{full}">{"".join(figures)}</div>' if figures else ""


def _suspects(run: RunFiles, plots: Dict[str, Path], thumbnails: Thumbnails) -> str:
    if run.suspects is None:
        return ""
    text = (
        "Suspicion is above 0 where, over all of training, another class fitted an image better than its given label. "
        "suspects.csv has every source image; pred_probs.npy and labels.npy are the same beliefs in cleanlab's form."
    )
    if run.label_model is not None:
        rate = f"{run.label_model['rate']:.1%} ± {run.label_model['rate_std']:.1%}"
        true = "" if run.true_rate is None else f" ({run.true_rate:.1%} are)"
        text += f" Estimated share of wrong labels, without any true label: {rate}{true}."
    return (f"<p>{escape(text)}</p>" + _plots(plots, "suspects", "suspects_roc") + most_suspicious(run, thumbnails)
            + _plots(plots, "label_model") + _plots(plots, "transition", "transition_true", wide=True))  # fmt: skip


def _classes(run: RunFiles, plots: Dict[str, Path]) -> str:
    report = run.report
    if report is None:
        return ""
    rows = []
    for name, (recall, count) in report.per_class.items():
        row = report.confusion[report.label_names.index(name)]
        wrong = [k for k in np.argsort(-row, kind="stable") if row[k] and report.label_names[k] != name][:2]
        taken = ", ".join(f"{report.label_names[k]} ({row[k]})" for k in wrong)
        bar = f'<span class="bar"><i style="width:{100 * (recall or 0):.0f}%"></i></span>'
        numbers = f'<td class="n">{count}</td><td class="n">{_percent(recall)}</td>'
        rows.append(f"<tr><td>{escape(name, 60)}</td>{numbers}<td>{bar}</td><td>{escape(taken, 120)}</td></tr>")
    head = '<tr><th>class</th><th class="n">images</th><th class="n">recall</th><th></th><th>mostly taken for</th></tr>'
    table = f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    return table + _plots(plots, "confusion", wide=True)


def _run(run: RunFiles) -> str:
    command = "python examples/noisy_unida.py " + shlex.join(map(str, run.config.get("command") or []))
    env = {key: value for key, value in run.env.items() if key != "versions"}
    env.update(run.env.get("versions") or {})
    flags = {key: value for key, value in run.config.items() if key not in ("split", "hparams", "command")}
    parts = [("Environment", env), ("Hyper-parameters", run.config.get("hparams") or {}), ("All settings", flags),
             ("Label sets", {key: ", ".join(names) for key, names in run.split.to_dict().items()})]  # fmt: skip
    lists = "".join(f"<details><summary>{title}</summary>{_pairs(values)}</details>" for title, values in parts)
    return f"<p>The command to repeat it:</p><pre>{escape(command)}</pre>{lists}"


def _pairs(values: Dict[str, Any]) -> str:
    shown = {key: "-" if value in (None, "", []) else value for key, value in values.items()}
    return "<dl>" + "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in shown.items()) + "</dl>"
