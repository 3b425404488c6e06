"""Run a script of tllib as it is: tllib importable, our names in its registries, downloads by our rules."""

import multiprocessing
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Optional, Sequence, TextIO, cast
from urllib.error import URLError

from tllib_ext import compat
from tllib_ext.errors import UserError
from tllib_ext.tllib.last_checkpoint import evaluate_last
from tllib_ext.tllib.registries import register
from tllib_ext.tllib.scenario import Scenario, ScriptRecord
from tllib_ext.vision.hooks import route_downloads

__all__ = ["run"]


def run(script: str, arguments: Sequence[str], download: bool = True, scenario: Optional[Scenario] = None) -> None:
    """Run ``script`` as ``python script arguments…`` would, with tllib importable and our names registered.

    Args:
        script (str): path of the script
        arguments (sequence of str): its words
        download (bool): fetch weights and data that are not on this machine. Default: True
        scenario (Scenario, optional): label noise and label sets; with one, the last checkpoint is evaluated
            at the end
    """
    path = Path(script)
    if not path.is_file():
        example = "Transfer-Learning-Library/examples/domain_adaptation/image_classification/dann.py"
        raise UserError(f"no script {script}: give the path of one of tllib's examples, e.g. {example}")
    folders = path.resolve().parents
    sys.path.insert(0, str(folders[0]))
    sys.path += [str(folder) for folder in folders if (folder / "tllib" / "__init__.py").is_file()]
    streams = sys.stdout, sys.stderr
    # tllib's logger takes stdout when it is imported, closes it at the end of a script and stays in its place.
    sys.stdout = cast(TextIO, _Unclosable(sys.stdout))
    try:
        register()
        compat.timm_or_stand_in()
        if "fork" in multiprocessing.get_all_start_methods():
            # a worker that is not a copy of this process would import tllib anew, without the names supplied here
            multiprocessing.set_start_method("fork", force=True)
        route_downloads(download)
        sys.argv = [script, *arguments]
        record = _run_path(script, scenario)
    finally:
        sys.stdout, sys.stderr = streams
    if scenario is not None and record is not None:
        evaluate_last(path.stem, record, scenario)


def _run_path(script: str, scenario: Optional[Scenario]) -> Optional[ScriptRecord]:
    """Run the script; what it did where there is a scenario."""
    with scenario.in_registries() if scenario is not None else nullcontext() as record:
        try:
            runpy.run_path(script, run_name="__main__")
        except ModuleNotFoundError as cause:
            raise compat.Missing(script, cause) from cause
        except URLError as error:
            remedy = "try again, or train without weights (--scratch)"
            raise UserError(f"a download of {script} failed: {error.reason}; {remedy}") from None
        except FileNotFoundError as error:
            # tllib's scripts end with a test of their best checkpoint. There is none if no target image of a known class
            # was right, or if tllib's mean over classes is not a number, as in osbp.py with source-private classes.
            absent = None if record is None or record.checkpoints is None else record.checkpoints / "best.pth"
            if absent is None or Path(str(error.filename)) != absent:
                raise
            print("tllib saved no best checkpoint: its own test is left out, the last checkpoint is evaluated")
    return record


class _Unclosable:
    """A stream that tllib's logger can close without ending the output of this process."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def close(self) -> None:
        """Write what is buffered; the stream stays open."""
        self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
