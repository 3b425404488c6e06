"""One file per method; :data:`METHODS` maps names to them without importing any."""

from tllib_ext.registry import Registry

__all__ = ["METHODS"]

#: name -> "module:class"; a file is imported when its method is asked for.
METHODS = Registry(
    "method",
    {
        "divergence": "tllib_ext.methods.divergence:Divergence",
        "source_only": "tllib_ext.methods.source_only:SourceOnly",
    },
)
