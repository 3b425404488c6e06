"""Heads, discriminators and memories that the methods are built from."""
