"""Registries: names, prefixes, import paths, and packages that add to them by entry points."""

import json
import sys
import textwrap
import time

import pytest
from conftest import ROOT
from test_compat import python, write_tree

from tllib_ext import registry
from tllib_ext.errors import UserError
from tllib_ext.registry import Registry

WORDS = ["-s", "alpha", "-t", "beta", "--steps", 3, "-b", 6, "--rate", 0.4, "--no-report"]
#: a package that adds a method and a noise, and claims a method that it does not have.
EXTRA = {
    "extra.py": """
        import numpy as np
        from tllib_ext.methods.source_only import SourceOnly

        class HalfLoss(SourceOnly):
            def update(self, source, target, step, play):
                return {"loss": super().update(source, target, step, play)["loss"] / 2}

        def previous(rate, num_classes):
            eye = np.eye(num_classes)
            return (1 - rate) * eye + rate * np.roll(eye, -1, axis=1)
    """,
    "extra-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: extra\nVersion: 1.0\nSummary: half of everything\n",
    "extra-1.0.dist-info/entry_points.txt": """
        [tllib_ext.methods]
        half_loss = extra:HalfLoss
        absent = extra:Absent
        twice = extra:HalfLoss
        [tllib_ext.noises]
        previous = extra:previous
    """,
    "other-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 2.0\n",
    "other-2.0.dist-info/entry_points.txt": """
        [tllib_ext.methods]
        twice = extra:HalfLoss
    """,
}


@pytest.fixture(scope="module")
def extra(tmp_path_factory):
    files = {name: textwrap.dedent(text).lstrip("\n") for name, text in EXTRA.items()}
    return write_tree(tmp_path_factory.mktemp("site"), files)


@pytest.fixture
def shapes():
    return Registry("shape", {"join": ("os.path:join", "two paths in one"), "sep": ("os.path:sep", "no callable")})


def test_names_are_imported_when_they_are_used(shapes):
    import os.path

    assert shapes.get("join") is os.path.join and "join" in shapes and list(shapes) == ["join", "sep"]
    with pytest.raises(UserError, match="'sep' is '/': expected a callable"):
        shapes.get("sep")


def test_a_name_is_registered_once(shapes):
    shapes.register("circle", "math:sin", help="round")
    with pytest.raises(UserError, match="shape 'circle' is registered already"):
        shapes.register("circle")(len)
    assert shapes.help()["circle"] == "round"
    with pytest.raises(UserError, match="unknown shape 'cirle': did you mean 'circle'"):
        shapes.get("cirle")


def test_prefixes_are_resolved_by_functions(shapes):
    shapes.register_prefix("op", "operator:attrgetter", "an attribute")
    shapes.register_prefix("few", "operator:itemgetter", "one of two", {"a": "the first", "b": ""})
    shapes.register("alias", "few:a")
    assert shapes.get("op:real")(3) == 3 and shapes.get("alias")({"a": 5}) == 5
    assert "few:a" in shapes and "few:c" not in shapes and "op:anything" in shapes
    assert {"op:NAME": "an attribute", "few:a": "the first", "few:b": "one of two"}.items() <= shapes.help().items()
    with pytest.raises(UserError, match="unknown shape 'few:c': did you mean 'few:b' or 'few:a'"):
        shapes.get("few:c")
    with pytest.raises(UserError, match="prefix 'op' of shapes is registered already"):
        shapes.register_prefix("op", "operator:itemgetter", "")


def test_import_paths_only_where_they_are_allowed(shapes):
    with pytest.raises(UserError, match="unknown shape"):
        shapes.get("os.path:join")
    paths = Registry("method", base="collections:OrderedDict", import_paths=True)
    assert paths.get("collections:OrderedDict").__name__ == "OrderedDict"
    with pytest.raises(UserError, match="unknown method"):
        paths.get("collections:OrderedDict", import_paths=False)
    with pytest.raises(UserError, match="expected a subclass of collections.OrderedDict"):
        paths.get("collections:Counter")
    for name in ("no_such_package.x:Y", "collections:NoSuchClass"):
        with pytest.raises(UserError, match="cannot be imported"):
            paths.get(name)


def test_a_model_file_does_not_choose_what_is_imported(tmp_path, monkeypatch):
    from tllib_ext.methods import METHODS

    write_tree(tmp_path, {"imported_by_name.py": "raise SystemExit('imported')\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="unknown method"):
        METHODS.get("imported_by_name:X", import_paths=False)
    assert METHODS.is_import_path("imported_by_name:X") and not METHODS.is_import_path("tllib:dann")


@pytest.mark.parametrize("flags", [["-c", "file.yaml"], ["--phase", "test", "--log", "run"]], ids=["settings", "model"])
def test_a_file_does_not_choose_what_is_imported(flags, extra, feature_root, run_example, tmp_path, monkeypatch):
    from tllib_ext.training import checkpoint

    monkeypatch.setattr(checkpoint, "load_model", lambda file: ({"method": "extra:HalfLoss", "hparams": {}}, {}, {}))
    (tmp_path / "file.yaml").write_text("method: extra:HalfLoss\n")
    monkeypatch.syspath_prepend(str(extra))
    monkeypatch.delitem(sys.modules, "extra", raising=False)
    code, _, err = run_example("noisy_unida", feature_root, *WORDS, *flags)
    assert code == 2 and len(err.splitlines()) == 1 and "extra:HalfLoss" in err and "extra" not in sys.modules


def test_a_package_adds_a_method_and_a_noise_by_entry_points(extra, feature_root, tmp_path):
    words = [feature_root, *WORDS, "-m", "half_loss", "--noise", "previous", "--log", tmp_path / "run"]
    done = python(ROOT / "examples" / "noisy_unida.py", *words, path=[extra])
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["method"] == "half_loss" and results["noise"] == "previous"


def test_a_method_by_its_import_path(extra, feature_root, run_example, monkeypatch):
    monkeypatch.syspath_prepend(str(extra))
    code, _, err = run_example("noisy_unida", feature_root, *WORDS, "-m", "extra:HalfLoss", "--log", "run")
    assert code == 0, err
    code, _, err = run_example("noisy_unida", feature_root, *WORDS, "-m", "extra:Absent", "--log", "no")
    assert code == 2 and len(err.splitlines()) == 1 and "method 'extra:Absent' cannot be imported" in err


def test_entry_points_that_fail_leave_the_others_alone(extra, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(extra))
    monkeypatch.setattr(registry, "_entry_points", registry._entry_points.__wrapped__)
    methods = Registry("method")
    assert methods.get("half_loss").__name__ == "HalfLoss"
    assert methods.help()["half_loss"] == "half of everything (package extra)"
    assert {"absent", "half_loss", "twice"} <= set(methods)
    with pytest.raises(UserError, match="'absent' of the package extra cannot be imported: AttributeError"):
        methods.get("absent")
    ours = Registry("method", {"half_loss": ("builtins:dict", "ours")})
    assert ours.help()["half_loss"] == "ours" and ours.get("half_loss") is dict
    assert "'half_loss' of the package extra is not used: the name is taken" in caplog.text
    with pytest.raises(UserError, match="the packages extra and other both add the method 'twice'|other and extra"):
        methods.get("twice")


def test_the_list_is_quick_and_imports_no_torch(extra):
    code = "import sys; from tllib_ext.cli.list import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    start = time.perf_counter()
    done = python("-c", code, path=[extra])
    seconds = time.perf_counter() - start
    assert done.returncode == 0 and done.stdout.endswith("False\n"), done.stderr
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("  ")}
    for name in ("credo", "tllib:mcd", "half_loss", "Office31", "tllib:VisDA2017", "resnet50", "timm:NAME", "pair", "previous"):
        assert len(lines[name]) > 10, name
    assert seconds < 5  # 0.2 s of processor time; this is a busy machine's


def test_the_list_of_one_kind(capsys):
    from tllib_ext.cli.list import main

    assert main(["noises"]) == 0
    out = capsys.readouterr().out
    assert "pair" in out and "resnet50" not in out
    with pytest.raises(SystemExit):
        main(["noise"])


@pytest.mark.parametrize("kind", ["methods", "datasets", "backbones", "noises"])
def test_every_entry_has_help_and_can_be_imported(kind):
    from tllib_ext.cli.list import REGISTRIES

    for name in REGISTRIES[kind]:
        assert REGISTRIES[kind].help()[name]
        REGISTRIES[kind].get(name)
