"""Large lists: memory stays small and grows with the list, not faster."""

import numpy as np
import pytest
from benchmark.scale import Metrics, Start, _once, start_up, write_list

from tllib_ext.vision.datasets.sampling import BalancedBatches, ShuffledBatches


def test_one_row_per_list(tmp_path):
    rows = start_up(tmp_path, [300])
    assert [(row["lines"], row["order"]) for row in rows] == [(300, "by class"), (300, "shuffled")]
    assert all(row["peak_mb"] > 0 for row in rows) and not list(tmp_path.iterdir())


def test_samplers_hold_one_number_per_image():
    labels = np.arange(200_000) % 20
    balanced, shuffled = BalancedBatches(labels, 36), ShuffledBatches(len(labels), 36)
    assert sum(value.nbytes for value in vars(balanced).values() if isinstance(value, np.ndarray)) == 8 * len(labels)
    shuffled(0)
    assert sum(value.nbytes for value in vars(shuffled).values() if isinstance(value, np.ndarray)) == 8 * len(labels)


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_million_lines_stay_below_a_gigabyte_and_a_half(tmp_path, shuffled):
    write_list(tmp_path / "list.txt", 1_000_000, shuffled)
    assert _once(Start, file=str(tmp_path / "list.txt"))["peak_mb"] < 1500


@pytest.mark.slow
def test_metrics_grow_linearly():
    small, large = (_once(Metrics, images=images) for images in (50_000, 500_000))
    grown = [row["peak_mb"] - row["before_mb"] for row in (small, large)]
    assert grown[1] < 12 * max(grown[0], 30)
