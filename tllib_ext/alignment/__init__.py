"""Alignment losses, usable alone in any tllib script."""
