"""One file per method; :data:`METHODS` maps names to their classes without importing any."""

from typing import TYPE_CHECKING, Type

from tllib_ext.registry import Registry

if TYPE_CHECKING:
    from tllib_ext.methods.base import Method

__all__ = ["METHODS", "TLLIB_METHODS"]

#: methods by name; ``package.module:Class`` is a name as well. Entry-point group ``tllib_ext.methods``.
METHODS: "Registry[Type[Method]]" = Registry(
    "method",
    {
        "cmu": ("tllib_ext.methods.cmu:Cmu", "CMU (ECCV 2020): adversarial training weighted by three uncertainties"),
        "coteaching": (
            "tllib_ext.methods.coteaching:CoTeaching",
            "Co-teaching (NeurIPS 2018): two networks exchange their small-loss samples",
        ),
        "credo": ("tllib_ext.methods.credo:Credo", "CREDO (ours): divergence optimisation, noise rate estimated"),
        "dance": ("tllib_ext.methods.dance:Dance", "DANCE (NeurIPS 2020): neighbourhood clustering, entropy separation"),
        "dance_sel": ("tllib_ext.methods.dance:DanceSel", "DANCE without the source samples of largest loss"),
        "dann": ("tllib_ext.methods.dann:Dann", "DANN (JMLR 2016): domain-adversarial training, closed set"),
        "dcc": ("tllib_ext.methods.dcc:Dcc", "DCC (CVPR 2021): clusters that match no source class are unknown"),
        "divergence": ("tllib_ext.methods.divergence:Divergence", "the paper (CVPR 2021): divergence of two classifier heads"),
        "dividemix": (
            "tllib_ext.methods.dividemix:DivideMix",
            "DivideMix (ICLR 2020): labels that look wrong are left unlabelled",
        ),
        "etn": ("tllib_ext.methods.etn:Etn", "ETN (CVPR 2019): source weighted by transferability, partial"),
        "gearnet": ("tllib_ext.methods.gearnet:GearNet", "GearNet (AAAI 2022): TCL in stages, source to target and back"),
        "jocor": ("tllib_ext.methods.jocor:JoCoR", "JoCoR (CVPR 2020): two networks, joint loss, samples of small joint loss"),
        "lead": ("tllib_ext.methods.lead:Lead", "LEAD (CVPR 2024), GLC, GLC++: source-free, pseudo-labels of the whole target"),
        "mixture": ("tllib_ext.methods.mixture:Mixture", "label model and target model (ours) on features, no training"),
        "mlnet": ("tllib_ext.methods.mlnet:MLNet", "MLNet (AAAI 2024): OVANet with neighbourhood invariance and mixup"),
        "ovanet": ("tllib_ext.methods.ovanet:OVANet", "OVANet (ICCV 2021): one-vs-all classifiers detect unknown"),
        "ppot": ("tllib_ext.methods.ppot:Ppot", "PPOT (AAAI 2023): partial transport to the prototypes of the source"),
        "source_only": ("tllib_ext.methods.source_only:SourceOnly", "cross entropy on the given source labels, no adaptation"),
        "sta": ("tllib_ext.methods.sta:Sta", "STA (CVPR 2019): progressive separation of unknown samples, open set"),
        "tcl": ("tllib_ext.methods.tcl:Tcl", "TCL (AAAI 2019): curriculum over noisy source samples, closed set"),
        "uan": ("tllib_ext.methods.uan:Uan", "UAN (CVPR 2019): adversarial training with sample weights, universal"),
        "uniot": ("tllib_ext.methods.uniot:UniOT", "UniOT (NeurIPS 2022): optimal transport to prototypes and clusters"),
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
METHODS.register_prefix("tllib", "tllib_ext.methods.tllib:build_class", "a method of tllib", TLLIB_METHODS)
