r"""The losses of `Divergence Optimization for Noisy Universal Domain Adaptation (CVPR 2021)
<https://arxiv.org/abs/2104.00246>`_ as modules on the logits of two (or more) classifier heads.

=====================================  ==========================================================================
:class:`SmallLossSelection`            Step A-1: the source samples of small loss are learnt
:class:`TargetSeparation`              Step A-2: the target's divergence and entropy move away from the border
:class:`HeadMinimax`                   Steps B and C: the heads drift apart on the target, G brings them together
:func:`unknown_by_divergence`          inference: unknown is what the heads disagree on
:class:`ImageClassifierHead`           F1 and F2: two instances on the features of G
=====================================  ==========================================================================

With ``features`` of the generator and two heads, one iteration of the paper's method is::

    y_s, y_t = (F1(f_s), F2(f_s)), (F1(f_t), F2(f_t))
    known = minimax.known(y_t)
    loss = selection(y_s, labels_s) + separation(y_t)                     # A: G, F1, F2 step
    loss = selection(y_s, labels_s) + minimax.apart(y_t)                  # B: F1, F2 step, features anew
    loss = minimax.together(y_t, known)                                   # C: G steps, n times, features anew

``examples/plain_tllib_loop.py`` is this loop in a script of tllib.
"""

from tllib_ext.alignment.minimax import HeadMinimax, unknown_by_divergence
from tllib_ext.alignment.quantities import at_least_float32, cross_divergence, divergences, mean_distribution_entropy
from tllib_ext.alignment.selection import SmallLossSelection, joint_loss, num_kept, pooled_small_loss, small_loss_mask
from tllib_ext.alignment.separation import TargetSeparation, separation
from tllib_ext.modules.heads import ImageClassifierHead

__all__ = [
    "SmallLossSelection",
    "TargetSeparation",
    "HeadMinimax",
    "unknown_by_divergence",
    "ImageClassifierHead",
    "joint_loss",
    "separation",
    "divergences",
    "cross_divergence",
    "mean_distribution_entropy",
    "num_kept",
    "small_loss_mask",
    "pooled_small_loss",
    "at_least_float32",
]
