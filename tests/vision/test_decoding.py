"""Threads that work ahead: order, the first error, and an end that waits for nothing."""

import threading
import time

import pytest

from tllib_ext.vision.datasets import decoding
from tllib_ext.vision.datasets.decoding import in_chunks, work_ahead


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_are_in_order(threads):
    assert list(work_ahead(lambda x: (time.sleep(0.01 * (x % 3)), x)[1], range(20), threads)) == list(range(20))
    assert list(in_chunks(lambda x: x * x, 20, threads, "squares")) == [x * x for x in range(20)]
    assert not running()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_the_first_error_in_the_order_of_the_items_is_raised(threads):
    def work(x):
        if x in (5, 6):
            time.sleep(0.05 if x == 5 else 0)
            raise ValueError(x)
        return x

    results = work_ahead(work, range(1000), threads)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="5"):
        next(results)
    assert not running()


def test_little_is_begun_beyond_what_is_consumed_and_nothing_after_the_end():
    begun = []
    results = work_ahead(begun.append, range(1000), threads=2)
    next(results)
    time.sleep(0.05)
    assert len(begun) <= 2 * 2 + 1
    results.close()
    count = len(begun)
    time.sleep(0.02)
    assert len(begun) == count and not running()


def test_a_thread_that_hangs_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(decoding, "PATIENCE", 0.05)
    release = threading.Event()

    def work(x):
        if x == 1:
            release.wait(60)
        return x

    results = work_ahead(work, range(10), threads=2)
    assert next(results) == 0
    results.close()
    (hanging,) = running()
    assert hanging.daemon  # the interpreter does not wait for it either
    release.set()
    hanging.join(10)
