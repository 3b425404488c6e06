"""One file per method; :data:`METHODS` maps names to their classes without importing any."""

from typing import TYPE_CHECKING, Type

from tllib_ext.registry import Registry

if TYPE_CHECKING:
    from tllib_ext.methods.base import Method

__all__ = ["METHODS", "TLLIB_METHODS"]

_HERE = "tllib_ext.methods"

#: methods by name; ``package.module:Class`` is a name as well. Entry-point group ``tllib_ext.methods``.
METHODS: "Registry[Type[Method]]" = Registry(
    "method",
    {
        "coteaching": (
            f"{_HERE}.coteaching:CoTeaching",
            "Co-teaching (NeurIPS 2018): each of two networks selects the small-loss samples of the other",
        ),
        "credo": (f"{_HERE}.credo:Credo", "CREDO (ours): divergence optimisation with estimated labels, needs no noise rate"),
        "dance": (f"{_HERE}.dance:Dance", "DANCE (NeurIPS 2020): neighbourhood clustering and entropy separation on the target"),
        "dance_sel": (f"{_HERE}.dance:DanceSel", "DANCE without the source samples of largest loss"),
        "dann": (f"{_HERE}.dann:Dann", "DANN (JMLR 2016): domain-adversarial training, closed set"),
        "divergence": (
            f"{_HERE}.divergence:Divergence",
            "Divergence optimisation (CVPR 2021), the paper's method: heads that diverge on unknown classes",
        ),
        "etn": (f"{_HERE}.etn:Etn", "ETN (CVPR 2019): source samples weighted by transferability, partial"),
        "jocor": (f"{_HERE}.jocor:JoCoR", "JoCoR (CVPR 2020): two networks, joint loss, samples of small joint loss"),
        "ovanet": (f"{_HERE}.ovanet:OVANet", "OVANet (ICCV 2021): one-vs-all classifiers that learn the border to unknown"),
        "source_only": (f"{_HERE}.source_only:SourceOnly", "cross entropy on the given source labels, no adaptation"),
        "sta": (f"{_HERE}.sta:Sta", "STA (CVPR 2019): separate unknown from known target samples step by step, open set"),
        "tcl": (f"{_HERE}.tcl:Tcl", "TCL (AAAI 2019): curriculum over noisy source samples, closed set"),
        "uan": (f"{_HERE}.uan:Uan", "UAN (CVPR 2019): adversarial training weighted by domain similarity and uncertainty"),
    },
    base="tllib_ext.methods.base:Method",
    import_paths=True,
    forms={"package.module:Class": "any subclass of tllib_ext.methods.base.Method"},
)

#: tllib's own methods, ``tllib:NAME``, each with a line of help.
TLLIB_METHODS = {
    "afn": "adaptive feature norm",
    "cdan": "conditional domain-adversarial training",
    "dan": "deep adaptation network: multi-kernel maximum mean discrepancy",
    "dann": "domain-adversarial training",
    "iwan": "importance-weighted adversarial training (partial adaptation)",
    "jan": "joint adaptation network: joint maximum mean discrepancy",
    "mcc": "minimum class confusion",
    "mcd": "maximum classifier discrepancy",
    "mdd": "margin disparity discrepancy",
    "osbp": "open set by back-propagation",
    "pada": "partial adversarial domain adaptation",
}
METHODS.register_prefix("tllib", f"{_HERE}.tllib.builtin:build_class", "a method of tllib", TLLIB_METHODS)
