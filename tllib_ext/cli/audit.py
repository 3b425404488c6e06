"""Find labels that look wrong, from frozen features and labels alone, without training.

    {prog} data/office31_resnet50/amazon.npz --out audit/amazon
    {prog} data/cifar.npz --labels data/cifar_human_labels.csv --labels-column worse --out audit/cifar
    {prog} my_photos/labelled --out runs/audit                images: my_photos/labelled/CLASS/IMAGE

Written to --out: suspects.csv (most suspicious first: suggestion, kind of doubt, group of near-duplicates), labels.npy and
pred_probs.npy (cleanlab's form), corrected.txt (a list file with labels corrected where the evidence is sufficient) and
moves.csv (the corrected ones), which tllib-ext apply shows and carries out.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

import numpy as np

from tllib_ext.cli.parser import Parser, add_settings, argument, output_folder, parse_settings
from tllib_ext.errors import UserError, visible
from tllib_ext.training.config import RunConfig
from tllib_ext.training.setting import NUMBER, settings_of

__all__ = ["main"]

_USED = (
    "root",
    "labels",
    "labels_column",
    "image_size",
    "download",
    "arch",
    "weights",
    "batch_size",
    "workers",
    "seed",
    "device",
)


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext audit") -> int:
    """Parse the flags, audit, write."""
    parser = Parser(
        prog=prog, usage=f"{prog} FILE_OR_DIR --out FOLDER [flags]", description=(__doc__ or "").replace("{prog}", prog)
    )
    known = {name: setting for name, setting in settings_of(RunConfig).items() if name in _USED}
    text = "a .npz file of features, or a folder with one folder of images per class"
    root = replace(known["root"], help=text, metavar="FILE_OR_DIR")
    parser.add_setting(parser.add_argument_group("what to audit"), "root", root, None)
    add_settings(parser, RunConfig, ["root", *(name for name in settings_of(RunConfig) if name not in _USED)])
    parser.add_argument("--out", required=True, type=output_folder, metavar="FOLDER", help="folder of the files")
    parser.add_argument("--least", type=argument(NUMBER), metavar="SUSPICION", help="in corrected.txt and moves.csv, also take"
                        " the suggestion where the suspicion is at least this, e.g. 0.5")  # fmt: skip
    parser.add_help_all()
    values, args = parse_settings(parser, known, argv)
    audit(RunConfig(**values), args.out, args.least)
    return 0


def audit(config: RunConfig, out: Path, least: Optional[float] = None) -> None:
    """Audit a file of features or a folder of class folders, and write the files."""
    from tllib_ext.evaluation.suspects_file import write_corrected_list, write_suspects
    from tllib_ext.io import write_json
    from tllib_ext.labels.audit import detection_quality
    from tllib_ext.labels.issues import find_label_issues
    from tllib_ext.labels.transition import estimate_labels
    from tllib_ext.split import LabelSplit
    from tllib_ext.training.run_dir import Lock
    from tllib_ext.vision.datasets.corrections import labels_before
    from tllib_ext.vision.datasets.imagelist import FeatureList, ImageFolder
    from tllib_ext.vision.datasets.labels_file import GivenLabels
    from tllib_ext.vision.datasets.moves import write_moves
    from tllib_ext.vision.datasets.universal import UniversalView

    if config.root is None:
        raise UserError("name what to audit: a .npz file of features, or a folder of class folders")
    source = Path(config.root)
    if not source.exists():
        raise UserError(f"root={str(source)!r} does not exist: expected a .npz file of features, or a folder of class folders")
    if source.is_dir() and sorted(source.glob("*.npz")):
        files = ", ".join(file.name for file in sorted(source.glob("*.npz"))[:5])
        raise UserError(f"{source} holds several domains: name one of its files ({files})")
    if config.labels_column is not None and config.labels is None:
        raise UserError(f"labels_column={config.labels_column!r}: give the file with it (labels)")
    _check_folder(out)
    dataset = FeatureList(source) if source.is_file() else ImageFolder(source)
    split = LabelSplit(tuple(dataset.classes[k] for k in sorted({label for _, label in dataset.samples if label is not None})))
    view = UniversalView(dataset, split, "source")
    named = None if config.labels is None else GivenLabels(view, config.labels, config.labels_column)
    given, clean = (view.targets, None) if named is None else (named.targets, named.truth)
    assert given is not None  # a source has labels
    if isinstance(dataset, FeatureList):
        features = dataset.features
    else:
        from tllib_ext.training.features import image_features

        features = image_features(dataset, config)
    issues = find_label_issues(features, given, config.seed)
    before = labels_before(view, getattr(dataset, "root", None)) if named is None else named.before
    if before is not None:  # the corrected labels agree with the model that corrected them
        model = estimate_labels(features, before, len(split.source_classes), config.seed)
        issues = replace(issues, model=model.of_labels(given))
    paths = view.paths if isinstance(dataset, FeatureList) else [str(Path(path).relative_to(source)) for path in view.paths]
    corrected = issues.corrected
    if least is not None:
        corrected = np.where(issues.suspicion >= least, issues.suggested, corrected)
    names = np.array(split.source_classes, dtype=object)
    numbers = np.array([dataset.classes.index(name) for name in split.source_classes])
    root = source.parent if source.is_file() else source
    lock = Lock(out)
    try:
        _check_folder(out)  # another audit or a run may have begun there
        places = {"root": str(root.absolute()), "of": str(source.absolute())}
        write_json(out / "audit.json", {**config.changed(), **places})
        write_suspects(out / "suspects.csv", paths, given, issues, split, clean)
        left_out = write_corrected_list(out / "corrected.txt", paths, numbers[corrected])
        moves = write_moves(out / "moves.csv", paths, names[given].tolist(), names[corrected].tolist())
    finally:
        lock.release()
    print(issues.summary(split.source_classes))
    if left_out:
        print(f"corrected.txt cannot hold {len(left_out)} paths, with a line break or a space at an end: {visible(left_out[0])}")
    print(f"{moves} labels corrected: {out}; tllib-ext apply {out / 'moves.csv'} shows which files would be moved")
    if clean is not None:
        quality = detection_quality(issues.suspicion, given != clean)
        before, after = np.mean(given != clean), np.mean(corrected != clean)
        print(f"by the true labels {before:.1%} are wrong, {after:.1%} after correction; {quality}")


def _check_folder(out: Path) -> None:
    """Refuse a folder that holds files and is not an audit's: an audit replaces files by their names."""
    foreign = [] if (out / "audit.json").is_file() or not out.is_dir() else sorted(set(os.listdir(out)) - {".lock"})
    if foreign or (out / "config.json").exists():
        found = "it is a run's" if (out / "config.json").exists() else f"it holds {visible(foreign[0])}"
        raise UserError(f"--out {out} is not an audit's folder ({found}): choose another one, or an empty one")
