"""A run from Python: ``train(RunConfig(…))`` gives what ``tllib-ext train`` gives, and the trained method."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import List, Optional, Tuple

from torch import nn

from tllib_ext.distributed import start
from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import Predictions
from tllib_ext.evaluation.openset import OpenSetReport
from tllib_ext.evaluation.suspects_file import Suspects
from tllib_ext.methods.base import Method
from tllib_ext.report.page import write_report
from tllib_ext.report.questions import write_questions_page
from tllib_ext.report.run_files import RunFiles, read_run
from tllib_ext.training import trainer
from tllib_ext.training.answering import Answers, answer_run, ask_run
from tllib_ext.training.build import build
from tllib_ext.training.config import RunConfig
from tllib_ext.training.device import pick_device
from tllib_ext.training.objects import given_objects
from tllib_ext.training.saved_run import SavedRun, load_run
from tllib_ext.typing import Record
from tllib_ext.vision.image_inputs import ImageInputs

__all__ = ["Run", "train"]


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Args:
        folder (Path): the run folder, with ``report.html``
        config (RunConfig): with every default filled in
        results (dict): the content of ``results.json``: metrics of the last step, settings, the realised noise rate
        report (OpenSetReport, optional): every metric of the last step; None for an unlabelled target
        method (Method): the trained method, in evaluation mode
        backbone (torch.nn.Module, optional): the module that the run was given, as it was
    """

    folder: Path
    config: RunConfig
    results: Record
    report: Optional[OpenSetReport]
    method: Method
    backbone: Optional[nn.Module] = None

    def __repr__(self) -> str:
        os = self.results.get("os")
        return f"Run({str(self.folder)!r}, {self.config.method}{'' if os is None else f', OS {os:.3f}'})"

    def predict(self, images: ImageInputs) -> Predictions:
        """Classify new images: files, a folder, PIL images or arrays; see :meth:`.SavedRun.predict`."""
        return self._saved.predict(images)

    def ask(self, n: int = 20, measure: bool = False) -> List[str]:
        """Paths of the target images whose labels help most; ``questions.html`` and ``questions.csv`` of the folder ask for them.

        Args:
            n (int): how many that were not asked before; answers that contradict similar images come first, again
            measure (bool): draw a random sample instead, for estimates of the metrics
        """
        return [question.path for question in ask_run(self.folder, n, measure, write_questions_page)]

    def answer(self, answers: Answers, trust: bool = False) -> "Run":
        """The run corrected by a person's answers; its folder is written anew and keeps the earlier files in ``answers/``.

        Args:
            answers (dict or file): path to label, ``{"new/7.jpg": "mug", "new/9.jpg": "unknown"}``, or a CSV file of
                ``path,label``; a label is a source class, ``unknown`` or ``cannot tell``
            trust (bool): also use answers that contradict similar images, which else must be given twice
        """
        answer_run(self.folder, answers, trust, write_report)
        files = read_run(self.folder)
        return replace(self, results=files.results, report=files.report)

    @cached_property
    def _saved(self) -> SavedRun:
        return load_run(self.folder, pick_device(self.config.device), self.backbone, import_code=True)

    @cached_property
    def _files(self) -> RunFiles:
        return read_run(self.folder)

    @property
    def predictions(self) -> Predictions:
        """``predictions.csv``: class, score and decision of every target sample."""
        return self._files.predictions

    @property
    def suspects(self) -> Suspects:
        """``suspects.csv``: the source labels, the most doubtful first, with a suggestion for each."""
        if self._files.suspects is None:
            raise UserError(f"no suspects.csv in {self.folder}: it was removed after the run")
        return self._files.suspects


def train(config: RunConfig, data: Optional[Tuple[object, object]] = None, backbone: Optional[nn.Module] = None) -> Run:
    """Train one run, evaluate it and write its folder, ``report.html`` included.

    An unfinished run of the same settings, and with equal objects, in the folder continues from its last checkpoint.

    Args:
        config (RunConfig): what to train on what; ``RunConfig()`` is the embedded data set
        data (tuple, optional): (source, target) in place of ``root`` and ``data``: lists with ``samples``, ``classes`` and
            ``loader`` (tllib's ``ImageList``, torchvision's ``ImageFolder``), or arrays ``(X, y)``; X holds features, or
            images in uint8, and a target may have y = None. The loader reads the images, the transform is the run's.
            Classes of one name are one class. ``config.source`` and ``config.target`` name the domains
        backbone (torch.nn.Module, optional): in place of ``arch``: a module without classifier, with ``out_features``
            (tllib) or ``num_features`` (timm). It is copied; maps are averaged. The saved run needs one of its class again:
            ``load_run(folder, backbone=module)``

    Examples::

        >>> run = train(RunConfig(root="data/office31", source="A", target="D", noise="pair", rate=0.2))  # doctest: +SKIP
        >>> run.results["os"], run.report.h_score, run.folder / "report.html"  # doctest: +SKIP
        >>> source, target = Office31("data/office31", "A"), Office31("data/office31", "D")  # doctest: +SKIP
        >>> run = train(RunConfig(noise="pair"), (source, target), tllib.vision.models.resnet50())  # doctest: +SKIP
    """
    objects = given_objects(config, data, backbone)
    parts = build(replace(config, device=start(config.device)), objects)
    outcome = trainer.train(parts, write_report)
    return Run(outcome.folder, parts.config, outcome.results, outcome.report, parts.method.eval(), backbone)
