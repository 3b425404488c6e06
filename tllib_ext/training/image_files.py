"""Predictions of a finished run for image files."""

import os
import sys
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from tqdm import tqdm

from tllib_ext.errors import UserError, one_line
from tllib_ext.images import load_image
from tllib_ext.methods.base import Prediction
from tllib_ext.training.predict import prediction_of_arrays
from tllib_ext.training.saved_run import SavedRun
from tllib_ext.vision.datasets.decoding import work_ahead
from tllib_ext.vision.datasets.folder_files import files_below, passed_over_note
from tllib_ext.vision.transforms import decode

__all__ = ["find_images", "predict_files"]


def find_images(names: Sequence[str]) -> List[str]:
    """Every named file, and every image below a named folder in the order of their paths; other files are named on stderr."""
    found: List[str] = []
    for name in names:
        if not os.path.isdir(name):
            found.append(name)
            continue
        images, others = files_below(name)
        found += images
        if others:
            print(one_line(passed_over_note(name, others)), file=sys.stderr)
    return found


def predict_files(run: SavedRun, files: Sequence[str], workers: int = 2) -> Tuple[Optional[Prediction], List[int]]:
    """Predict every readable file; the others are named on stderr.

    Args:
        run (SavedRun): from :func:`~tllib_ext.training.saved_run.load_run`
        files (sequence of str): image files
        workers (int): threads that decode images

    Returns:
        the predictions as arrays, None if no file is readable, and the positions in ``files`` that they are of
    """

    def read(file: str) -> Union[np.ndarray, str]:
        try:
            return decode(load_image(file), run.resize)
        except (UserError, MemoryError) as error:
            return f"skipped: {error or 'not enough memory for ' + file}"

    kept: List[int] = []
    rows: List[np.ndarray] = []
    parts: List[Any] = []

    def flush() -> None:
        parts.append(run.predict_pixels(torch.from_numpy(np.stack(rows))))
        rows.clear()

    with tqdm(total=len(files), unit="img", disable=None) as bar:
        for position, pixels in enumerate(work_ahead(read, files, workers)):
            if isinstance(pixels, str):
                tqdm.write(one_line(pixels), file=sys.stderr)
            else:
                kept.append(position)
                rows.append(pixels)
            if len(rows) == run.batch:
                flush()
            bar.update()
        if rows:
            flush()
    return (prediction_of_arrays(map(np.concatenate, zip(*parts))) if parts else None), kept
