"""Measurements against plain code: what ``examples/benchmark.py`` runs."""
