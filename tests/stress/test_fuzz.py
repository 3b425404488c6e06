"""Damaged and generated files: a reader reads them or raises UserError with a message, and nothing else.

``python tests/stress/stress.py fuzz`` does the same with a hundred thousand files.
"""

import warnings

import pytest
from fuzz_readers import READERS, fuzz


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_what_they_cannot_read(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would be an unexplained line on stderr
        tried, refused = fuzz(name, 60, 0, tmp_path)
    assert tried >= 60 and 0 < refused <= tried


@pytest.mark.parametrize("name", READERS)
def test_the_undamaged_file_is_read(name, tmp_path):
    stem, good, _, _, read = READERS[name]
    (tmp_path / stem).write_bytes(good)
    read(tmp_path / stem)
