"""Data and weights that a run needs and this machine lacks, fetched before the run reads anything."""

from typing import List, Optional

from tllib_ext.training.config import RunConfig
from tllib_ext.vision.datasets.builder import DataRequest, DatasetBuilder
from tllib_ext.vision.datasets.catalog import recognise
from tllib_ext.vision.datasets.folders import FeatureData
from tllib_ext.vision.datasets.own import dataset_builder
from tllib_ext.vision.fetch import Needed, provide
from tllib_ext.vision.models import BACKBONES
from tllib_ext.vision.models.providers import NamedBackbone

__all__ = ["fetch_inputs", "lacking_weights"]


def fetch_inputs(config: RunConfig, task: bool = True, weights_alone: bool = False) -> None:
    """Fetch a known data set whose folder is absent or empty together with the weights, so that one error names both.

    Args:
        config (RunConfig): the run
        task (bool): whether it needs a source and a target, which are checked before the download. Default: True
        weights_alone (bool): also fetch weights if the data are here; otherwise those are fetched when the network is built,
            after the data have been checked. Default: False
    """
    name = recognise(config.root) if config.data == "auto" else config.data
    builder = dataset_builder(name)
    if not isinstance(builder, DatasetBuilder) or isinstance(builder, FeatureData):
        return
    needed: List[Needed] = []
    lacking = builder.lacking(config.root)
    if lacking is not None and config.root is not None:
        if task:
            builder.pair(config.root, DataRequest(name, config.root, config.source, config.target))
        needed.append(lacking)
    if lacking is not None or weights_alone:
        needed += filter(None, [lacking_weights(config, "small_cnn" if name == "Glyphs" else "resnet50")])
    provide(needed, config.download)


def lacking_weights(config: RunConfig, arch: str = "resnet50") -> Optional[Needed]:
    """The default weights of the run's backbone, ``arch`` if none is named; None if they are here or not asked for."""
    builder = BACKBONES.get(config.arch or arch)
    if config.scratch or config.weights != "default" or not isinstance(builder, NamedBackbone):
        return None
    weights = builder.weights()
    return None if weights.at_hand() else weights
