"""Data and backbone of a run that the caller passes as objects in place of names."""

import os
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Optional

from torch import nn

from tllib_ext.errors import UserError
from tllib_ext.training.config import RunConfig
from tllib_ext.training.inputs import fetch_inputs
from tllib_ext.training.resolve import open_run_data, with_image_size
from tllib_ext.typing import Record
from tllib_ext.vision.datasets.builder import Data
from tllib_ext.vision.datasets.cache import state_digest
from tllib_ext.vision.datasets.given import OBJECTS, data_of, list_record
from tllib_ext.vision.models.backbones import build_backbone
from tllib_ext.vision.models.given import OBJECT, GivenBackbone
from tllib_ext.vision.models.stages import ALL

__all__ = ["NO_OBJECTS", "Objects", "given_objects", "given_network"]


@dataclass(frozen=True)
class Objects:
    """What a run was given in place of names; both None: nothing.

    Args:
        data (Data, optional): both domains
        backbone (GivenBackbone, optional): a copy of the caller's
    """

    data: Optional[Data] = None
    backbone: Optional[GivenBackbone] = None

    def named(self, config: RunConfig) -> RunConfig:
        """The configuration with names for the objects; names of other data or another backbone beside them are an error."""
        if self.data is not None:
            if config.data not in ("auto", OBJECTS):
                raise UserError(f"data={config.data!r} and data objects: give one of them")
            config = replace(config, data=OBJECTS, root=config.root or self._root())
        if self.backbone is not None:
            name = f"{OBJECT}{self.backbone.name}"
            for setting, value in (("arch", config.arch), ("weights", config.weights), ("scratch", config.scratch)):
                if value not in (None, "default", False, name):
                    raise UserError(f"{setting}={value!r} and a backbone object: leave out {setting}")
            config = replace(config, arch=name)
        return config

    def _root(self) -> Optional[str]:
        """The folder that holds both lists, whose images the page of a run may show."""
        roots = [] if self.data is None else [getattr(x, "root", None) for x in (self.data.source, self.data.target)]
        if not all(isinstance(root, (str, os.PathLike)) and os.path.isdir(root) for root in roots):
            return None
        common = os.path.commonpath([os.path.abspath(str(root)) for root in roots])
        return None if common == os.path.abspath(os.sep) else common

    def open(self, config: RunConfig) -> Data:
        """Both domains, with the label split and the size of images of the configuration."""
        size = None if self.backbone is None else self.backbone.input_size
        if self.data is None:
            if config.data == OBJECTS:
                raise UserError("the run was made with data objects: pass equal ones, train(config, data=(source, target))")
            fetch_inputs(config if self.backbone is None else replace(config, arch=None, weights="none"))
            data = open_run_data(config if config.image_size or not size else replace(config, image_size=size))
        else:
            data = self.data
            if config.split is not None:
                data = replace(data, split=data.split_of(config.split))
            if not data.is_features:
                data = with_image_size(data, config.image_size or size, config.arch)
        if self.backbone is not None:
            if data.is_features:
                raise UserError("the data are features, which need no backbone: leave out backbone")
            self.backbone.check(data.crop)
        return data

    def network(self, config: RunConfig) -> nn.Module:
        """A new backbone of the run: a copy of the caller's, or the one that the configuration names."""
        if self.backbone is not None:
            return deepcopy(self.backbone)
        return build_backbone(str(config.arch), config.weights, config.download)

    def record(self, config: RunConfig) -> Record:
        """What ``config.json`` says of them; a run continues only with equal ones."""
        record: Record = {}
        if self.data is not None:
            record.update(source=list_record(self.data.source), target=list_record(self.data.target))
        if self.backbone is not None:
            record["backbone"] = self.backbone.record()
            if config.train_from != ALL:  # the part that is not trained is in no checkpoint
                record["backbone"]["weights"] = state_digest(self.backbone.net)[:16]
            record["predict"] = f"load_run(FOLDER, backbone=MODULE), where MODULE is a {self.backbone.name} of the same layers"
        return record


#: a run of names alone
NO_OBJECTS = Objects()


def given_objects(config: RunConfig, data: object = None, backbone: Optional[nn.Module] = None) -> Objects:
    """The objects of a call of ``train``, checked.

    Args:
        config (RunConfig): its ``source`` and ``target`` name the domains
        data (optional): a pair (source, target)
        backbone (torch.nn.Module, optional): with ``out_features``
    """
    return Objects(
        None if data is None else data_of(data, config.source, config.target),
        None if backbone is None else GivenBackbone(backbone),
    )


def given_network(metadata: Record, backbone: Optional[nn.Module], folder: object) -> nn.Module:
    """The backbone of a saved run, without its weights: by its name, or the caller's module."""
    name = str(metadata["arch"])
    if not name.startswith(OBJECT):
        if backbone is not None:
            raise UserError(f"the run in {folder} has its own backbone, {name}: leave out backbone")
        return build_backbone(name, None)
    trained = metadata["objects"]["backbone"]
    what = f"a backbone object, {trained['class']} with {trained['out_features']} features"
    if backbone is None:
        raise UserError(
            f"the run in {folder} was trained with {what}: in Python, load_run(folder, backbone=module) with such a one"
        )
    network = GivenBackbone(backbone)
    found = network.record()
    if any(found[key] != trained[key] for key in ("class", "out_features", "structure")):
        other = f"{found['class']} with {found['out_features']} features"
        raise UserError(f"the run in {folder} was trained with {what}, and other layers than the given {other}")
    return network
