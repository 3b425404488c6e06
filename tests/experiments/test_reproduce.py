"""examples/reproduce.py: every experiment on small data, and its plan at the paper's size."""

import json

import numpy as np
import pytest
from test_compare import inline

from tllib_ext.cli.grid_axes import parse_noises
from tllib_ext.experiments import compare, reproduce
from tllib_ext.experiments.domains import Domains
from tllib_ext.experiments.grid import Grid, Variant
from tllib_ext.experiments.plans import EXPERIMENTS
from tllib_ext.split import PRESETS, LabelSplit
from tllib_ext.training.config import RunConfig


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    """Office-31's domains and classes with a few blobs each, so that the paper's numbers apply."""
    root, rng = tmp_path_factory.mktemp("office"), np.random.default_rng(0)
    names = sorted(PRESETS["Office31"].source_classes + PRESETS["Office31"].target_private)
    centres = rng.normal(size=(31, 12))
    for domain in ("amazon", "dslr", "webcam"):
        labels = np.repeat(np.arange(31), 3)
        features = (centres[labels] + 0.2 * rng.normal(size=(93, 12))).astype(np.float32)
        np.savez(root / f"{domain}.npz", features=features, labels=labels, classes=np.array(names))
    return root


@pytest.fixture(autouse=True)
def here(monkeypatch, blank_plots):
    monkeypatch.setattr(compare, "run_cells", inline)
    inline.ran = []


SMALL = ("-b", "8", "--steps", "2", "--out", "out")


def test_ablation_has_eight_rows_beside_the_papers(run_example, office, tmp_path):
    words = ("ablation", "-d", "features", office, "--tasks", "A2D", "--seeds", "0", *SMALL)
    code, out, err = run_example("reproduce", *words)
    assert code == 0, err
    assert len(inline.ran) == 8
    for number in ("88.46", "88.18", "86.88", "87.60", "84.89", "88.71", "86.49", "89.42"):
        assert number in out
    assert "A2D paper" in out and "difference" in out and "w/o mini-max" in out
    files = (tmp_path / "out/cells").glob("*/config.json")
    configs = {file.parent.name: json.loads(file.read_text())["hparams"]["ablate"] for file in files}
    assert sorted(configs.values()) == sorted(["", "no_select", "no_div", "no_crs", "no_ent", "no_sep", "no_minimax", "kl"])
    assert configs["amazon2dslr_pair0.2_divergence_seed0"] == ""
    # Interrupted and started again it continues; another experiment uses the runs that are there.
    inline.ran = []
    (tmp_path / "out/cells/amazon2dslr_pair0.2_divergence_kl_seed0/results.json").unlink()
    assert run_example("reproduce", *words)[0] == 0 and inline.ran == ["amazon2dslr_pair0.2_divergence_kl_seed0"]
    inline.ran = []
    code, out, err = run_example("reproduce", "density", office, "-d", "features", "--seeds", "0", *SMALL)
    assert code == 0 and inline.ran == [] and (tmp_path / "out/density.png").exists(), err


@pytest.mark.parametrize(
    "name, words, columns",
    [
        # the paper's mean of two tasks: (50.67 + 56.00) / 2
        ("table2", ["--tasks", "A2D,D2A", "--noise", "P45,S45"], ["P45 paper", "53.34", "S45 paper"]),
        ("table3", ["--tasks", "A2D,D2A", "--noise", "S45"], ["A2D paper", "50.49", "41.97", "mean paper", "46.23"]),
        ("ct_sweep", ["--points", "0,11,21"], ["target-private", " 0 ", " 21 "]),
        ("noise_sweep", ["--points", "0,0.45"], ["pair noise", "50.67", "50.49"]),
    ],
)
def test_every_experiment_runs(run_example, office, tmp_path, name, words, columns):
    words = ("--methods", "source_only", "--seeds", "0", *words, *SMALL)
    code, out, err = run_example("reproduce", name, "-d", "features", office, *words)
    assert code == 0, err
    for text in columns:
        assert text in out, text
    assert out.count("last step of") == 1  # under the last table, though noise_sweep has two
    for suffix in ("csv", "md", "tex", "json", "html", "png"):
        assert (tmp_path / "out" / f"{name}.{suffix}").exists()
    if name == "ct_sweep":
        results = [json.loads(f.read_text()) for f in (tmp_path / "out/cells").glob("*/results.json")]
        assert sorted(r["split"] for r in results) == ["10/0/21", "10/10/11", "10/21/0"]


def office_grid(**change):
    domains = Domains("features", ("amazon", "dslr", "webcam"), {})
    values = dict(domains=domains, tasks=[domains.task("amazon", "dslr")], noises=parse_noises("P20"),
                  variants=[Variant("divergence", {"method": "divergence"})], seeds=[0], base=RunConfig(),
                  noise_seed="0", out=None, command="", paper_settings=True)  # fmt: skip
    return Grid(**{**values, **change})


def test_ct_sweep_keeps_the_union_and_the_shared_classes():
    points = EXPERIMENTS["ct_sweep"].points(office_grid(), None)
    sizes = [point.keys["x"] for point in points]
    assert sizes[0] == 0 and sizes[-1] == 21 and 11 in sizes
    for point in points:
        split = LabelSplit.parse(point.cell.config.split or "Office31", [])
        assert len(split.target_private) == point.keys["x"] and split.shared == PRESETS["Office31"].shared
        assert len(split.source_private) == 21 - point.keys["x"]
    # sizes are nested: growing the target's part never gives a class back
    privates = [set(LabelSplit.parse(p.cell.config.split or "Office31", []).target_private) for p in points]
    assert all(small <= large for small, large in zip(privates, privates[1:]))


def test_sensitivity_is_the_papers_two_settings_and_shares_its_defaults():
    points = EXPERIMENTS["sensitivity"].points(office_grid(), None)
    assert {(p.keys["task"], p.keys["code"]) for p in points} == {("A2D", "P20"), ("D2W", "S45")}
    assert {p.keys["row"] for p in points} == {"alpha", "lambda", "delta", "m", "n"}
    defaults = [p for p in points if p.cell.name == "amazon2dslr_pair0.2_divergence_seed0"]
    assert [(p.keys["row"], p.keys["x"]) for p in defaults] == [("alpha", 0.2), ("lambda", 0.1), ("m", 1.0), ("n", 4)]
    assert {len(p.cell.config.hparams) for p in points} == {0, 1}


def test_sensitivity_is_a_table_and_a_panel_per_hyper_parameter():
    grid = office_grid()
    records = [{**point.keys, "os": 0.5} for point in EXPERIMENTS["sensitivity"].points(grid, None)]
    tables, figures = reproduce._sensitivity(records, "os", grid)
    assert [table.rows for table in tables] == [["divergence"]] * 10  # five in each of the paper's two settings
    assert tables[0].columns == ["0", "0.1", "0.2", "0.3", "0.45", "0.6"]
    assert len(figures["sensitivity"].axes) == 10


def test_noise_sweep_has_clean_labels_once():
    points = EXPERIMENTS["noise_sweep"].points(office_grid(), "0,0.2")
    assert [(p.keys["noise"], p.keys["x"]) for p in points] == [("pair", 0), ("pair", 0.2), ("symmetric", 0), ("symmetric", 0.2)]
    assert len({p.cell.name for p in points}) == 3


def test_sensitivity_hyper_parameters_are_understood():
    from tllib_ext.methods.divergence import DivergenceHparams

    for point in EXPERIMENTS["sensitivity"].points(office_grid(), None):
        for name, text in point.cell.config.hparams.items():
            assert float(getattr(DivergenceHparams.parse({name: text}), name)) == point.keys["x"]


def test_dry_run_at_full_size(run_example, office, tmp_path):
    code, out, err = run_example("reproduce", "table2", "-d", "features", office, "--dry-run", "--out", "out")
    assert code == 0, err
    assert "576 of 576 cells to run" in out and not (tmp_path / "out").exists()


def test_dry_run_on_images_counts_gpu_hours(run_example, tmp_path):
    folder = tmp_path / "office31" / "image_list"
    folder.mkdir(parents=True)
    for name in ("amazon", "dslr", "webcam"):
        (folder / f"{name}.txt").write_text("")
    code, out, err = run_example("reproduce", "table3", tmp_path / "office31", "--data", "Office31", "--dry-run")
    assert code == 0 and "GPU hours" in out, err


@pytest.mark.parametrize(
    "words, part",
    [
        (["tabel2"], "did you mean 'table2'"),
        (["ablation", "--methods", "dance"], "leave out --methods"),
        (["ct_sweep", "--points", "22"], "from 0 to 21"),
        (["noise_sweep", "--points", "2"], "noise rates in"),
        (["table2", "--points", "2"], "--points is for"),
        (["table2", "--tasks", "X2Y"], "unknown task"),
    ],
)
def test_bad_words_are_one_line(run_example, office, words, part):
    code, _, err = run_example("reproduce", words[0], office, "-d", "features", *words[1:])
    assert code == 2 and part in err and len(err.strip().splitlines()) == 1


def test_other_data_has_no_ct_sweep(run_example, feature_root):
    code, _, err = run_example("reproduce", "ct_sweep", feature_root, "-d", "features")
    assert code == 2 and "--split a/b/c" in err


def test_without_words_the_help(run_example):
    code, out, _ = run_example("reproduce")
    assert code == 0 and all(name in out for name in EXPERIMENTS)
