"""The notebooks run from the first to the last cell, and are stored without outputs."""

import json
import re

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def test_they_are_stored_without_outputs():
    assert [file.stem for file in NOTEBOOKS] == ["add_a_method", "answers", "audit_labels", "demo", "own_arrays"]
    for file in NOTEBOOKS:
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None), file


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_they_run(file, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = nbformat.read(file, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"^STEPS = \d+$", "STEPS = 4", cell.source, flags=re.M)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
