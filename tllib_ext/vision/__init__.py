"""Data sets and backbones."""
