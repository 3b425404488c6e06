"""Data for runs in forked child processes."""

import pytest
from forked_runs import preload, write_features


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two domains of features; the modules of a run are imported."""
    root = write_features(tmp_path_factory.mktemp("forked") / "features")
    preload(root)
    return root
