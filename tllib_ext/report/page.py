"""``report.html``: one page about one run that needs no other file, no script and no network."""

import os
import shlex
from itertools import chain
from pathlib import Path
from typing import Dict, Optional

import numpy as np

from tllib_ext.evaluation.further import FURTHER
from tllib_ext.evaluation.openset import DEFINITIONS
from tllib_ext.io import write_text
from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.gallery import class_examples, class_groups, interleave, suspects, unknown_groups
from tllib_ext.report.plots import plot_run
from tllib_ext.report.run_files import RunFiles, read_run
from tllib_ext.report.style import save
from tllib_ext.report.templating import data_address, png_picture, render
from tllib_ext.typing import PathLike, Record

__all__ = ["page", "write_report"]

#: bytes of a page, of its thumbnails (before base64), and of the markup of one image in a list.
_PAGE, _THUMBNAILS, _ROW = 7_500_000, 2_200_000, 250


def write_report(folder: PathLike, results: Optional[Record] = None) -> Path:
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
    """The page of a run; ``plots`` maps the names of :func:`~tllib_ext.report.plots.plot_run` to PNG files."""
    folder, split, source = DataFolder(run.config, run.folder), run.split, run.suspects
    by_class, unknown, doubtful = class_groups(run, folder), unknown_groups(run, folder), suspects(run, folder)
    examples = class_examples(run, sorted({k for s in doubtful for k in (s.given, s.suggested)})[:300])
    items = [group.items for group in (*by_class, *unknown)]
    wanted = [list(examples.values()), [s.path for s in doubtful], *([item.path for item in group] for group in items)]
    pictures = {name: png_picture(file.read_bytes()) for name, file in plots.items()}
    text = sum(len(item.link) + len(item.name) + _ROW for item in (*chain.from_iterable(items), *3 * doubtful))
    room = _PAGE - text - sum(len(picture.address) for picture in pictures.values())
    thumbnails = folder.thumbnails(interleave(wanted), 1500, min(_THUMBNAILS, max(room * 3 // 4, 0)))
    env = {key: value for key, value in run.env.items() if key != "versions"}
    return render(
        "report.html.j2",
        title=f"{run.config.get('method')}: {run.config.get('source_name')} to {run.config.get('target_name')}",
        run=run,
        config=run.config,
        split=split,
        report=run.report,
        definitions=DEFINITIONS,
        further={name: text for name, text in FURTHER.items() if run.results.get(name) is not None},
        class_groups=by_class,
        unknown_groups=unknown,
        num_unknown=int(np.count_nonzero(run.predictions.predicted == split.unknown)),
        suspects=doubtful,
        num_suspects=0 if source is None else int((source.suspicion > 0).sum()),
        truth_known=source is not None and source.clean is not None,
        examples=examples,
        thumbnails={path: number for number, path in enumerate(thumbnails)},
        addresses=[data_address(data, "image/jpeg") for data in thumbnails.values()],
        pictures=pictures,
        command=_command(run),
        settings={
            "Environment": {**env, **(run.env.get("versions") or {})},
            "Hyper-parameters": run.config.get("hparams") or {},
            "All settings": {key: value for key, value in run.config.items() if key not in ("split", "hparams", "command")},
            "Label sets": {key: ", ".join(names) for key, names in split.to_dict().items()},
        },
    )


def _command(run: RunFiles) -> str:
    """The run as a command with its folder and ``--overwrite``, in the folder where it was started."""
    if run.config.get("command") is None:
        return ""
    words = [str(word) for word in run.config["command"] if word not in ("--overwrite", "--resume")]
    if run.config.get("log") is None:
        words += ["--log", os.path.abspath(run.folder)]
    there = f"cd {shlex.quote(str(run.env['directory']))} && " if run.env.get("directory") else ""
    return there + shlex.join(["tllib-ext", "train", *words, "--overwrite"])
