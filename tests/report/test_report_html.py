"""The page of a run: everything on it, nothing obeyed that a name says, and a browser that shows it."""

import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import browse, needs_browser
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.evaluation.feature_map_file import FeatureMap, write_feature_map
from tllib_ext.evaluation.files import write_predictions
from tllib_ext.evaluation.suspects_file import write_suspects
from tllib_ext.io import write_json
from tllib_ext.labels.audit import audit_labels, audit_quality
from tllib_ext.methods.base import Prediction
from tllib_ext.report.draw import draw
from tllib_ext.report.gallery import Thumbnails, escape
from tllib_ext.report.html import page as make_page
from tllib_ext.report.run_files import read_run
from tllib_ext.report.write import write_report
from tllib_ext.split import LabelSplit

SPLIT = LabelSplit(
    ["<script>alert('x')</script>", "=cmd|' /C calc'!A0", 'a,b"c'], ["'onload='x", "$m$"], ["</style><img src=x onerror=y>"]
)


def make_run(folder, labelled=True, noise="pair", data="folder", images=True, extras=True):
    """A run folder as a run leaves it, made by hand."""
    folder.mkdir(parents=True)
    rng, k, n = np.random.default_rng(0), SPLIT.num_source, 60
    names = [f"<img src=x onerror=alert({i})>" if i % 7 == 0 else f"a,b\"c' {i}" for i in range(n)]
    paths = [str(folder / "pictures" / f"{name}.png") for name in names]
    if images:
        (folder / "pictures").mkdir()
        for path, pixels in zip(paths, rng.integers(0, 255, (n, 40, 30, 3), dtype=np.uint8)):
            Image.fromarray(pixels).save(path)
        open(paths[3], "wb").write(b"no image")
    config = {"method": "divergence", "data": data, "source_name": "a<b", "target_name": "c&d", "noise": noise, "rate": 0.2,
              "seed": 0, "steps": 9, "split": SPLIT.to_dict(), "hparams": {"eta": 0.05},
              "command": ["my data", "--hp", "a=<b>"]}  # fmt: skip
    write_json(folder / "config.json", config)
    labels = np.r_[np.arange(40) % 3, np.full(20, SPLIT.unknown)]
    probs, score = rng.dirichlet(np.full(k, 0.4), n), rng.normal(size=n) + 2 * (labels == SPLIT.unknown)
    prediction = Prediction(probs, score, score > 1)
    write_predictions(folder / "predictions.csv", prediction, np.arange(n), paths, SPLIT, 1.0, labels if labelled else None)
    results = {"os": 0.5, "realised_rate": 0.2, "realised_transition": np.eye(k).tolist(), "oracle_os": 0.6, "oracle_step": 3}
    if extras:
        clean = rng.integers(0, k, n)
        audit = SimpleNamespace(loss=rng.exponential(size=n), probs=probs, visits=np.ones(n))
        given = np.where(rng.random(n) < 0.2, (clean + 1) % k, clean)
        audit, truth = audit_labels(audit, given), None if noise == "none" else clean
        write_suspects(folder / "suspects.csv", paths, given, audit, SPLIT, truth)
        results.update({} if truth is None else audit_quality(audit, given, truth))
        write_feature_map(folder / "tsne.csv", FeatureMap(np.arange(n) % 3, np.arange(n), rng.normal(size=n), rng.normal(size=n)))
        model = {"rate": 0.2, "rate_std": 0.01, "trace": [{"rate": 0.3}, {"rate": 0.2}], "transition": np.eye(k).tolist()}
        write_json(folder / "label_model.json", model)
        write_json(folder / "env.json", {"python": "3.<b>", "versions": {"torch": "2", "tllib": None}})
        lines = [{"step": step, "train_loss": 1 / step, "os": 0.1 * step} for step in (1, 2, 3)]
        (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(folder / "results.json", results)
    return folder


class Page(HTMLParser):
    """Tags with their attributes, and all text outside of the style sheet."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.pieces, self.inside = [], [], []
        self.feed(text)
        self.text = " ".join(self.pieces)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if self.inside[-1:] != ["style"]:
            self.pieces.append(data)


def read_page(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("report") / "run")
    write_report(folder)
    return folder


def test_names_are_text_and_nothing_else(report):
    text, page = read_page(report)
    allowed = ("html head meta title style body main header nav section h1 h2 h3 p a ul li i b bdi span table thead tbody tr th "
               "td div figure figcaption img details summary dl dt dd pre").split()  # fmt: skip
    assert {tag for tag, _ in page.tags} <= set(allowed)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    for name in SPLIT.source_classes:
        assert name in page.text
    assert "<img src=x onerror=alert(0)>.png" in page.text and "a<b to c&d" in page.text
    assert "python examples/noisy_unida.py 'my data' --hp 'a=<b>'" in page.text


def test_the_page_needs_no_other_file(report):
    text, page = read_page(report)
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sources and all(re.match(r"data:image/(png|jpeg);base64,[\w+/=]+$", source) for source in sources)
    assert all(attributes["href"].startswith("#") for tag, attributes in page.tags if tag == "a")
    assert not re.search(r"url\(|@import|https?://", text)
    assert len(text.encode()) < 5_000_000
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_it_shows_what_the_files_say(report):
    _, page = read_page(report)
    run = read_run(report)
    for value in (run.report.os, run.report.h_score, run.report.auroc, run.results["suspects_auroc"]):
        assert f"{100 * value:.1f} %" in page.text
    assert "mean recall over the shared classes and unknown" in page.text and "20.0% ± 1.0% (20.0% are)" in page.text
    plots = {file.stem for file in (report / "plots").iterdir()}
    assert sorted(plots) == ("confusion density label_model metrics suspects suspects_roc threshold training transition "
                             "transition_true tsne").split()  # fmt: skip
    assert "no picture" in page.text  # the damaged image is named all the same


@pytest.mark.parametrize("case", [
    {"labelled": False, "noise": "none"}, {"data": "features", "images": False}, {"images": False}, {"extras": False},
])  # fmt: skip
def test_other_runs(tmp_path, case):
    run = read_run(make_run(tmp_path / "run", **case))
    assert "density" in draw(run)
    page = Page(make_page(run, {}))
    thumbnails = [a for tag, a in page.tags if tag == "img" and a["src"].startswith("data:image/jpeg")]
    assert bool(thumbnails) == case.get("images", True)
    assert ("no picture" in page.text) == (case.get("data") != "features")
    if not case.get("labelled", True):
        assert "The target has no labels" in page.text and "called unknown" in page.text
        assert "have a suspicion above 0" in page.text and "true:" not in page.text
    if not case.get("extras", True):
        assert "look wrong" not in page.text


def test_the_page_again_from_the_files_is_the_same(report):
    plots = {file.stem: file for file in (report / "plots").iterdir()}
    assert make_page(read_run(report), plots) == (report / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["results.json", "config.json", "predictions.csv"])
def test_a_folder_without_a_run_is_one_clear_error(tmp_path, damage):
    folder = make_run(tmp_path / "run", images=False, extras=False)
    (folder / damage).unlink()
    with pytest.raises(UserError, match=damage):
        write_report(folder)


def test_thumbnails_are_small_and_never_an_error(tmp_path):
    Image.new("CMYK", (3000, 2000)).save(tmp_path / "large.jpg")
    Image.new("P", (1, 1)).save(tmp_path / "tiny.gif")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    thumbnails = Thumbnails()
    assert len(thumbnails(str(tmp_path / "large.jpg"))) < 20_000 and thumbnails(str(tmp_path / "tiny.gif"))
    assert thumbnails(str(tmp_path / "broken.png")) is None and thumbnails(str(tmp_path)) is None and thumbnails("\0") is None
    thumbnails.left = 0
    assert thumbnails(str(tmp_path / "tiny.gif")) is None
    assert escape("a\u202eb\x00\udcff") == "a\\u202eb\\x00\\udcff"


@needs_browser
def test_a_browser_shows_it(report, tmp_path):
    address = (report / "report.html").as_uri()
    frames = "".join(f'<iframe style="width:{width}px;height:900px" src="{address}"></iframe>' for width in (1280, 390))
    (tmp_path / "frames.html").write_text(f"""{frames}<pre id=out></pre><script>onload = () => {{
        out.textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {{
            const page = frame.contentDocument, root = page.documentElement, images = [...page.images]
            return {{images: images.length, broken: images.filter(image => !image.naturalWidth).length, width: root.scrollWidth,
                     letters: getComputedStyle(page.body).fontSize, sections: page.querySelectorAll("section").length}}
        }}))}}</script>""")
    seen = browse("--dump-dom", page=tmp_path / "frames.html")
    desk, phone = json.loads(re.search(r'<pre id="out">(.*?)</pre>', seen.stdout).group(1))
    assert "CONSOLE" not in seen.stderr, seen.stderr
    for frame, width in ((desk, 1280), (phone, 390)):
        assert frame["images"] > 50 and frame["broken"] == 0 and frame["sections"] == 6
        assert frame["width"] <= width and frame["letters"] == "16px"  # nothing sticks out sideways
    browse(f"--print-to-pdf={tmp_path / 'page.pdf'}", page=report / "report.html")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
