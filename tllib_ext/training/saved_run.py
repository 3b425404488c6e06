"""A finished run as something that labels new images: all it takes is ``model.safetensors`` and this package."""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple, Union, cast

import numpy as np
import torch
from torch import Tensor, nn

from tllib_ext.errors import UserError
from tllib_ext.evaluation.files import Predictions, make_predictions
from tllib_ext.methods import METHODS
from tllib_ext.methods.base import Method, Prediction
from tllib_ext.modules.heads import FeatureBottleneck
from tllib_ext.split import LabelSplit
from tllib_ext.training.answer_files import AnswerFiles
from tllib_ext.training.answer_space import Answered
from tllib_ext.training.checkpoint import load_method, load_model
from tllib_ext.training.frozen import FROZEN_BATCH, frozen_part
from tllib_ext.training.objects import given_network
from tllib_ext.training.predict import prediction_of_arrays
from tllib_ext.typing import Record
from tllib_ext.vision.image_inputs import ImageInputs, batched_pixels
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.given import OBJECT
from tllib_ext.vision.models.stages import ALL
from tllib_ext.vision.transforms import MEAN, STD, Augment

__all__ = ["SavedRun", "load_run"]

#: images per forward of the method, as in a run: the same sums in the same order.
_BATCH = 128
#: sides of images, and width of layers or number of heads, that a model file may ask for: it must not take all memory
_SIZES, _WIDEST = (8, 4096), 8192


@dataclass(repr=False)
class SavedRun:
    """A trained method with everything between an image file and its answer.

    Args:
        method (Method): in evaluation mode
        frozen (torch.nn.Module, optional): the frozen backbone, or part of it, under the method
        split (LabelSplit): names of the classes
        resize (int): images are decoded to squares of this side
        crop (int): of which the network sees the centre
        device (torch.device): where both networks are
        mean, std (sequence of float): of the channels, by which images are normalised
        answered (Answered, optional): answers of a person, which correct every prediction
    """

    method: Method
    frozen: Optional[nn.Module]
    split: LabelSplit
    resize: int
    crop: int
    device: torch.device
    mean: Sequence[float] = MEAN
    std: Sequence[float] = STD
    answered: Optional[Answered] = None

    #: images to hand to :meth:`predict_pixels` at a time
    batch = _BATCH

    def __repr__(self) -> str:
        classes, side = self.split.num_source, self.crop
        return f"SavedRun({type(self.method).__name__}, {classes} classes, images of {side} pixels, {self.device})"

    def features(self) -> nn.Module:
        """The network from normalised images to the features that the method's heads see."""
        return self.method.backbone if self.frozen is None else _Stacked(self.frozen, self.method.backbone)

    def predict(self, images: ImageInputs) -> Predictions:
        """Classify images: one row each, ``for row in run.predict("photos"): print(row.path, row.predicted, row.score)``.

        Args:
            images: a file or a folder, a PIL image, uint8 pixels :math:`(H, W, 3)`, or a list of these
        """
        names: List[str] = []
        parts: List[Prediction] = []
        for chunk in batched_pixels(images, self.resize, self.batch):
            names += chunk.names
            parts.append(self.predict_pixels(torch.from_numpy(chunk.pixels)))
        return make_predictions(prediction_of_arrays(map(np.concatenate, zip(*parts))), names, self.split, self.threshold)

    @torch.no_grad()
    def predict_pixels(self, rows: Tensor) -> Prediction:
        """Predictions of images: :math:`(N, R, R, 3)` uint8 pixels, R = ``resize``; arrays on the CPU."""
        x = Augment(self.crop, mean=self.mean, std=self.std).centre(rows.to(self.device))
        if self.frozen is not None:
            x = torch.cat([self.frozen(part).float() for part in x.split(FROZEN_BATCH)])
        found = prediction_of_arrays(value.cpu().numpy() for value in self.method.predict(x))
        if self.answered is None:
            return found
        features = x if self.answered.space.on_inputs else self.method.backbone(x)
        return self.answered.predict(features.float().cpu().numpy(), found)

    @property
    def threshold(self) -> Optional[float]:
        """The threshold on the score, where there is one for all images."""
        return self.method.threshold if self.answered is None else 0.5


class _Stacked(nn.Sequential):
    """A frozen part of half precision under a trained one."""

    def forward(self, x: Tensor) -> Tensor:
        frozen, trained = self
        return trained(frozen(x).float())


def load_run(
    folder: Union[str, Path], device: Union[str, torch.device] = "cpu", backbone: Optional[nn.Module] = None,
    import_code: bool = False,
) -> SavedRun:  # fmt: skip
    """Build the method of a run folder and give it the saved weights.

    Args:
        folder (str or Path): of a finished run on images
        device (str or torch.device, optional): where to predict. Default: "cpu"
        backbone (torch.nn.Module, optional): of a run that was trained with a backbone object: one of the same class and
            layers, whose weights do not matter

    A folder without a model, a model of another version or one that was trained on features without images is a
    :class:`~tllib_ext.errors.UserError`. A file does not choose code to import: a method or backbone of your own,
    ``package.module:name``, needs ``import_code=True``.
    """
    folder, device = Path(folder), torch.device(device)
    if not folder.is_dir():
        raise UserError(f"no run folder {folder}: expected the folder of a finished run")
    metadata, tensors, frozen_tensors = load_model(folder / "model.safetensors")
    try:
        if metadata["arch"] is None:
            raise UserError(
                f"the run in {folder} was trained on features and has no image backbone: only a run on images can label images"
            )
        split, image = LabelSplit(**metadata["split"]), metadata["image"]
        resize, crop = int(image["resize"]), int(image["crop"])
        if not _SIZES[0] <= crop <= resize <= _SIZES[1]:
            raise ValueError(f"images of {resize} pixels, cropped to {crop}: expected {_SIZES[0]} to {_SIZES[1]}")
        counts = {"bottleneck_dim": metadata["bottleneck_dim"], **metadata["hparams"]}
        for name, count in counts.items():
            if type(count) is int and count > _WIDEST:
                raise ValueError(f"{name}={count}: expected at most {_WIDEST}")
        _check_code(metadata, folder, import_code)
        trained, frozen = _networks(metadata, frozen_tensors, crop, folder, backbone)
        cls = METHODS.get(metadata["method"], import_code)
        method = cls(trained, split, cls.Hparams.parse(metadata["hparams"]))
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"the model in {folder} was written by another version: {type(error).__name__} {error}") from None
    load_method(method, tensors, folder)
    for module in filter(None, (method, frozen)):
        module.to(device).eval().requires_grad_(False)
    answered = None
    if (folder / "answers.csv").is_file():
        files = AnswerFiles(folder, ended=False)
        answered = files.answered(files.answers)
    return SavedRun(method, frozen, split, resize, crop, device, image.get("mean", MEAN), image.get("std", STD), answered)


def _check_code(metadata: Record, folder: Path, import_code: bool) -> None:
    for kind, registry in (("method", METHODS), ("arch", BACKBONES)):
        name = str(metadata[kind])
        if not import_code and not name.startswith(OBJECT) and registry.is_import_path(name):
            remedy = "allow it to be imported (import_code=True, --import-code)"
            raise UserError(f"the run in {folder} needs code of yours, {kind} {name}: {remedy}")


def _networks(
    metadata: Record, frozen_tensors: Dict[str, Tensor], crop: int, folder: Path, given: Optional[nn.Module] = None
) -> Tuple[nn.Module, Optional[nn.Module]]:
    """What the method trained, and the frozen part of the backbone under it or None."""
    backbone, stage = given_network(metadata, given, folder), metadata["train_from"]
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if stage == ALL:
        return backbone, None
    frozen, trained = frozen_part(backbone, str(stage), crop)
    try:
        frozen.load_state_dict(frozen_tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the frozen backbone in {folder} does not fit {metadata['arch']}: {reason}") from None
    if trained is not None:
        return trained, frozen
    return FeatureBottleneck(
        cast(int, backbone.out_features), metadata["bottleneck_dim"], metadata.get("bottleneck_norm", "batch")
    ), frozen
