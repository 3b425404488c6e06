"""Images move to the folders of their labels: shown first, inside the data folder, never over a file, nothing silent."""

import os

import pytest

from tllib_ext.cli.main import main
from tllib_ext.vision.datasets.moves import plan_moves, write_moves


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "data"
    for path in ("ant/it's.jpg", "ant/2.jpg", "ant/deep/3.jpg", "bee/2.jpg", "cat/1.jpg"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    return root


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def apply(tmp_path, rows, *words):
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return main(["apply", str(tmp_path / "labels.csv"), *map(str, words)])


def test_moves_are_shown_first_and_then_made(root, tmp_path, capsys, monkeypatch):
    before, rows = files(root), ["ant/it's.jpg,cat", "ant/2.jpg,ant", "ant/deep/3.jpg,bee", "cat/1.jpg,ant"]
    monkeypatch.chdir(tmp_path)
    assert apply(tmp_path, rows, "--root", "data") == 0
    out = capsys.readouterr().out
    assert f"{root}/ant/it's.jpg -> {root}/cat/it's.jpg" in out and "3 to move, 0 not moved, 1 in place" in out
    assert "nothing was changed: add --yes" in out and files(root) == before
    assert apply(tmp_path, rows, "--root", "data", "--yes") == 0
    out = capsys.readouterr().out
    assert "3 moved" in out and f"removed the empty folder {root}/ant/deep" in out
    assert (root / ".labels_before.csv").is_file()
    (root / ".labels_before.csv").unlink()
    assert files(root) == ["ant/1.jpg", "ant/2.jpg", "bee/2.jpg", "bee/deep/3.jpg", "cat/it's.jpg"]
    assert (root / "cat/it's.jpg").read_text() == "ant/it's.jpg" and not (root / "ant/deep").exists()


def test_collisions_are_counted_and_named(root, tmp_path, capsys):
    rows = ["ant/2.jpg,bee", "ant/it's.jpg,cat", "nowhere/x.jpg,ant"]
    for words in ([], ["--yes"]):
        assert apply(tmp_path, rows, "--root", root, *words) == 1
        out = capsys.readouterr().out
        assert "not moved: ant/2.jpg: a file of this name is in" in out and "not moved: nowhere/x.jpg: there is no such" in out
        assert "2 not moved" in out
    assert (root / "bee/2.jpg").read_text() == "bee/2.jpg" and (root / "ant/2.jpg").exists()
    both = plan_moves(root, ["ant/2.jpg", "bee/2.jpg"], ["new", "new"])
    assert len(both.moves) == 1 and len(both.refused) == 1  # they would meet there


@pytest.mark.parametrize("path, label", [
    ("ant/2.jpg", "../../../../tmp/x"), ("ant/2.jpg", ".."), ("ant/2.jpg", "/tmp"), ("ant/2.jpg", "."), ("ant/2.jpg", "a\0b"),
    ("../secret.txt", "bee"), ("ant/../../secret.txt", "bee"), ("/etc/hostname", "bee"), ("out/secret.txt", "bee"),
    ("ant/2.jpg", "leads_out"), ("ant\0/2.jpg", "bee"), ("ant/2.jpg", "x" * 300)])  # fmt: skip
def test_nothing_leaves_the_data_folder(root, tmp_path, path, label):
    (tmp_path / "secret.txt").write_text("secret")
    (root / "out").symlink_to(tmp_path)
    (root / "leads_out").symlink_to(tmp_path)
    before = sorted(map(str, tmp_path.rglob("*")))
    plan = plan_moves(root, [path], [label])
    assert plan.moves == [] and len(plan.refused) == 1
    plan.carry_out()
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_names_that_a_shell_would_read_are_names(root, tmp_path):
    (root / "-rf").mkdir()
    (root / "-rf" / "$(touch x); *.jpg").write_text("image")
    plan = plan_moves(root, ["-rf/$(touch x); *.jpg"], ["-t"])
    plan.carry_out()
    assert (root / "-t" / "$(touch x); *.jpg").read_text() == "image" and not (root / "-rf").exists()


def test_the_file_of_an_audit_names_its_folder(root, tmp_path, capsys):
    (tmp_path / "audit.json").write_text(f'{{"root": "{root}"}}')
    assert write_moves(tmp_path / "moves.csv", ["ant/2.jpg", "cat/1.jpg"], ["ant", "cat"], ["cat", "cat"]) == 1
    assert main(["apply", str(tmp_path / "moves.csv"), "--yes"]) == 0
    assert (root / "cat/2.jpg").exists()
    os.remove(tmp_path / "audit.json")
    assert main(["apply", str(tmp_path / "moves.csv")]) == 2 and "--root DIR" in capsys.readouterr().err
    (tmp_path / "list.txt").write_text("ant/2.jpg 1\n")
    assert main(["apply", str(tmp_path / "list.txt"), "--root", str(root)]) == 2
    assert "one column of class names" in capsys.readouterr().err


def test_the_class_folder_may_be_deep(root):
    (root / "amazon/images/ant").mkdir(parents=True)
    (root / "amazon/images/ant/9.jpg").write_text("x")
    plan = plan_moves(root, ["amazon/images/ant/9.jpg"], ["bee"], ["ant"])
    assert [new for _, new in plan.moves] == [root / "amazon/images/bee/9.jpg"]
    assert plan_moves(root, ["amazon/images/ant/9.jpg"], ["bee"], ["gnu"]).refused
