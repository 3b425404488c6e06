"""Reading a run folder and drawing its page load neither torch nor the packages above the report."""

import pkgutil
import subprocess
import sys

import tllib_ext.evaluation
import tllib_ext.report


def test_report_and_evaluation_import_neither_torch_nor_training():
    names = [f"{package.__name__}.{module.name}" for package in (tllib_ext.report, tllib_ext.evaluation)
             for module in pkgutil.iter_modules(package.__path__)]  # fmt: skip
    assert "tllib_ext.report.page" in names and "tllib_ext.evaluation.files" in names
    code = f"import importlib, sys; [importlib.import_module(name) for name in {names!r}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded
    ours = {name.split(".")[1] for name in loaded if name.startswith("tllib_ext.")}
    assert ours <= {"report", "evaluation", "compat", "errors", "io", "images", "split", "typing", "columns", "streams"}
