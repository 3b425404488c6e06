"""Grids of runs: the plan (grid), its execution (runner), the published numbers (paper)."""
