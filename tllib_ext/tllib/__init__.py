"""The bridge to tllib: our data, label noise, label sets and backbones in its registries and scripts.

``register()`` fills tllib's registries, ``noisy`` and ``universal`` make data set classes as tllib's
``open_set`` and ``partial`` do, ``python -m tllib_ext.tllib SCRIPT`` runs tllib's example scripts. Importing
this package does nothing else: tllib is imported when it is needed.
"""

from tllib_ext.tllib.factories import noisy, universal
from tllib_ext.tllib.registries import register

__all__ = ["noisy", "register", "universal"]
