"""Names and values of earlier releases, in files that this one reads."""

from typing import Any, Mapping

from tllib_ext.training.setting import HPARAMS
from tllib_ext.typing import Record

__all__ = ["NEEDLESS", "RENAMED", "upgrade"]

#: names of earlier releases -> today's.
RENAMED = {"bottleneck": "bottleneck_dim", "hp": "hparams"}


#: flags of earlier releases that do nothing now -> why.
NEEDLESS = {"--download": "what is absent is downloaded; --no-download forbids it"}


def upgrade(record: Mapping[str, Any]) -> Record:
    """``config.json``, ``cell.json`` or a model's metadata in today's names, whichever release wrote it.

    Examples::

        >>> upgrade({"bottleneck": 16, "hp": ["n=2"], "preset": "official"})
        {'preset': 'default', 'bottleneck_dim': 16, 'hparams': {'n': '2'}}
    """
    record = dict(record)
    for old, new in RENAMED.items():
        if old in record:
            value = record.pop(old)
            record.setdefault(new, value)
    if isinstance(record.get("hparams"), (list, Mapping)):
        record["hparams"] = HPARAMS.read(record["hparams"])
        record["hparams"] = {name: "code" if value == "official" else value for name, value in record["hparams"].items()}
    if record.get("preset") == "official":
        record["preset"] = "default"
    if record.get("batch_norm", "") is None:  # one process: both kinds are the same
        record["batch_norm"] = "global"
    if "freeze_backbone" in record and record.get("arch"):
        record.setdefault("train_from", "head" if record["freeze_backbone"] else "all")
        record.setdefault("backbone_norm", None if record["freeze_backbone"] else "batch")
    return record
