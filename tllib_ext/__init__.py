"""tllib_ext: Noisy Universal Domain Adaptation as extensions of TLlib.

The package mirrors tllib's folders (``tllib.alignment.mcd`` <-> ``tllib_ext.alignment.divergence``).
Nothing heavy happens at import: sub-packages load torch, torchvision, tllib or matplotlib when they are used.
"""

__version__ = "0.2.0"
__all__ = ["__version__"]
