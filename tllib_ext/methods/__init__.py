"""One file per method; :data:`METHODS` maps names to them without importing any."""

from typing import Any

from tllib_ext.registry import Registry

__all__ = ["METHODS", "TLLIB_METHODS"]


class _Methods(Registry):
    """Adds ``tllib:NAME``: tllib's own losses behind our contract, resolved when asked for."""

    def get(self, name: str) -> Any:
        if name.startswith("tllib:"):
            from tllib_ext.methods.tllib.builtin import build_class

            return build_class(name.removeprefix("tllib:"))
        return super().get(name)


#: name -> "module:class"; a file is imported when its method is asked for.
METHODS = _Methods(
    "method",
    {
        "divergence": "tllib_ext.methods.divergence:Divergence",
        "credo": "tllib_ext.methods.credo:Credo",
        "source_only": "tllib_ext.methods.source_only:SourceOnly",
        "dann": "tllib_ext.methods.dann:Dann",
        "tcl": "tllib_ext.methods.tcl:Tcl",
        "etn": "tllib_ext.methods.etn:Etn",
        "uan": "tllib_ext.methods.uan:Uan",
        "sta": "tllib_ext.methods.sta:Sta",
        "dance": "tllib_ext.methods.dance:Dance",
        "dance_sel": "tllib_ext.methods.dance:DanceSel",
        "ovanet": "tllib_ext.methods.ovanet:OVANet",
        "coteaching": "tllib_ext.methods.coteaching:CoTeaching",
        "jocor": "tllib_ext.methods.jocor:JoCoR",
    },
)

#: tllib's built-in methods that ``tllib:NAME`` knows.
TLLIB_METHODS = ("dann", "cdan", "mcd", "mdd", "dan", "jan", "afn", "mcc", "osbp", "pada", "iwan")
