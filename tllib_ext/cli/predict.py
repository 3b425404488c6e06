"""Label new images with a finished run.

    {prog} runs/my_run photos/                       CSV on the screen
    {prog} runs/my_run photos/ more/7.jpg --out predictions.csv
    {prog} runs/my_run photos/ --format json > predictions.json

It needs the run folder and this package, nothing of the training data. A folder means every image below it. The class
is one of the run's source classes or "unknown"; a file that is no readable image is named on stderr and passed over.
"""

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

from tllib_ext.cli.parser import Parser, output_file
from tllib_ext.errors import UserError
from tllib_ext.io import write_text

if TYPE_CHECKING:
    from tllib_ext.methods.base import Prediction
    from tllib_ext.training.saved_run import SavedRun

__all__ = ["main"]


def write_csv(file: Path, run: "SavedRun", prediction: "Prediction", positions: List[int], files: List[str]) -> None:
    """The columns of a run's predictions.csv."""
    from tllib_ext.evaluation.files import write_predictions

    write_predictions(file, prediction, positions, [files[i] for i in positions], run.split, run.threshold)


def write_json_records(file: Path, run: "SavedRun", prediction: "Prediction", positions: List[int], files: List[str]) -> None:
    """A list of one object per image, with the probabilities of all classes."""

    def number(value: float) -> Optional[float]:
        return float(value) if math.isfinite(value) else None  # JSON has no infinity

    names, records = run.split.label_names, []
    for row, position in enumerate(positions):
        label = run.split.unknown if prediction.unknown[row] else prediction.probs[row].argmax()
        probabilities = {name: number(p) for name, p in zip(run.split.source_classes, prediction.probs[row])}
        records.append({"path": files[position], "predicted": names[label], "score": number(float(prediction.score[row])),
                        "threshold": run.threshold, "probabilities": probabilities})  # fmt: skip
    write_text(file, json.dumps(records, indent=1) + "\n")


def main(argv: Optional[Sequence[str]] = None, prog: str = "tllib-ext predict") -> int:
    """Parse the flags, load the run, label the images."""
    parser = Parser(prog=prog, description=(__doc__ or "").replace("{prog}", prog))
    parser.add_argument("run", metavar="RUN", help="folder of a finished run on images")
    parser.add_argument("images", nargs="+", metavar="IMAGE_OR_FOLDER", help="image files, and folders of them")
    parser.add_argument("--out", type=output_file, default="-", metavar="FILE", help="default: -, the screen")
    parser.add_argument("--format", choices=["csv", "json"], help="default: as --out ends, else csv")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("-j", "--workers", type=int, default=2, help="threads that decode images (default: 2)")
    parser.add_argument("--import-code", action="store_true", help="let the run import your own method or backbone")
    args = parser.parse_args(argv)
    from tllib_ext.training.device import pick_device
    from tllib_ext.training.image_files import find_images, predict_files
    from tllib_ext.training.saved_run import load_run

    run = load_run(args.run, pick_device(args.device), import_code=args.import_code)
    files = find_images(args.images)
    if not files:
        raise UserError(f"no image in {', '.join(args.images)}")
    if not args.out.absolute().parent.is_dir():
        raise UserError(f"--out {args.out}: there is no folder {args.out.parent}")
    prediction, positions = predict_files(run, files, max(1, args.workers))
    if prediction is None:
        raise UserError(f"none of {len(files)} files is a readable image")
    kind = args.format or ("json" if args.out.suffix == ".json" else "csv")
    write = {"csv": write_csv, "json": write_json_records}[kind]
    write(args.out, run, prediction, positions, files)
    unknown = int(prediction.unknown.sum())
    print(f"{len(positions)} of {len(files)} files labelled, {unknown} of them unknown", file=sys.stderr)
    return 0
