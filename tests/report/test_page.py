"""The page of a run: everything is on it, names stay text, and a browser shows it."""

import base64
import hashlib
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from conftest import browse, needs_browser
from made_run import SPLIT, make_run
from PIL import Image

from tllib_ext.errors import UserError
from tllib_ext.io import write_json
from tllib_ext.report.data_folder import DataFolder
from tllib_ext.report.gallery import unknown_groups
from tllib_ext.report.page import page as make_page
from tllib_ext.report.page import write_report
from tllib_ext.report.plots import plot_run
from tllib_ext.report.run_files import read_run


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
    allowed = ("html head meta title style body main header nav section h1 h2 h3 p a ul li i b small span table thead tbody tr "
               "th td div figure figcaption img details summary dl dt dd pre meter").split()  # fmt: skip
    assert {tag for tag, _ in page.tags} <= set(allowed)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    for name in SPLIT.source_classes:
        assert name in page.text
    assert "<img src=x onerror=alert(0)>.png" in page.text and "a<b to c&d" in page.text


def test_the_page_needs_no_other_file(report):
    text, page = read_page(report)
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    css = re.search("<style>(.*?)</style>", text, re.S).group(1)
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:; ") and f"style-src 'sha256-{digest}';" in policy
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert sources and all(re.match(r"data:image/png;base64,[\w+/=]+$", source) for source in sources)
    assert len(re.findall(r"url\(data:image/jpeg;base64,[\w+/=]+\)", css)) == css.count("url(") > 40
    assert not re.search(r"@import|https?://", text)
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_every_image_is_linked_and_every_name_complete(report):
    _, page = read_page(report)
    run, links = read_run(report), {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    found = {(report / unquote(link)).resolve() for link in links if not link.startswith("#")}
    assert found == {Path(path) for path in [*run.predictions.path, *run.suspects.path[run.suspects.suspicion > 0]]}
    assert "…" not in page.text
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {link[1:] for link in links if link.startswith("#")} == ids


def test_the_probability_is_that_of_the_decision(report):
    text, run = read_page(report)[0], read_run(report)
    p = run.predictions
    assert text.count("probability 0.") + text.count("probability 1.00") == np.count_nonzero(p.predicted != SPLIT.unknown)
    assert text.count("nearest class: ") == np.count_nonzero(p.predicted == SPLIT.unknown)
    i = int(np.flatnonzero(p.predicted != SPLIT.unknown)[0])
    assert f"probability {p.top_probs[i, 0]:.2f}" in text and p.top[i, 0] == p.predicted[i]


def test_sections_follow_the_questions(report):
    headings = re.findall("<h2>(.*?)</h2>", read_page(report)[0])
    assert headings == ["What are the new images?", "Which are unknown?", "Which source labels are wrong?",
                        "How good are the predictions?", "Curves", "How it was made"]  # fmt: skip


def test_all_suspects_in_three_orders(report):
    text, s = read_page(report)[0], read_run(report).suspects
    tables = re.findall(r'<table class="suspects">(.*?)</table>', text, re.S)
    rows = [re.findall(r"<tr class=.*?</tr>", table) for table in tables]
    assert [len(found) for found in rows] == [np.count_nonzero(s.suspicion > 0)] * 3 and rows[0] != rows[1] != rows[2]
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2]) and all("<td>duplicate</td>" in row for row in rows[0])
    pictures = [row.count('<i class="t ') for row in rows[0]]
    assert max(pictures) == 3 and min(pictures) > 1  # the image, an example of the given and of the suggested class


def test_it_shows_the_numbers_of_the_files(report):
    _, page = read_page(report)
    run = read_run(report)
    for value in (run.report.os, run.report.h_score, run.report.auroc, run.results["suspects_auroc"]):
        assert f"{100 * value:.1f} %" in page.text
    assert (
        "mean recall over the shared classes and unknown" in page.text
        and "review the changed labels (simulated: 20.0%)" in page.text
    )
    earlier = replace(run, label_model={name: value for name, value in run.label_model.items() if name != "rate_text"})
    assert "20.0% ± 1.0% are estimated to be wrong (simulated: 20.0%)" in Page(make_page(earlier, {})).text
    plots = {file.stem for file in (report / "plots").iterdir()}
    assert plots == {"confusion", "density", "metrics", "suspects", "threshold", "training", "transition", "tsne"}


@pytest.mark.parametrize("config, command", [
    ({"log": None, "command": ["my data", "--hp", "a=<b>"]}, "'my data' --hp 'a=<b>' --log {run} --overwrite"),
    ({"log": "x", "command": ["--log", "x", "--overwrite"]}, "--log x --overwrite"),
    ({"log": "x", "command": ["--log=x", "--resume"]}, "--log=x --overwrite"),
    ({"command": None}, None),
])  # fmt: skip
def test_the_command_repeats_the_run(tmp_path, config, command):
    folder = make_run(tmp_path / "run", images=False, extras=False)
    write_json(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **config})
    page = Page(make_page(read_run(folder), {}))
    if command is None:
        assert "repeats the run" not in page.text
    else:
        assert f"tllib-ext train {command.format(run=folder)}" in page.text


@pytest.mark.parametrize("case", [
    {"labelled": False, "noise": "none"}, {"data": "features", "images": False}, {"images": False}, {"extras": False},
])  # fmt: skip
def test_other_runs(tmp_path, case):
    run = read_run(make_run(tmp_path / "run", **case))
    assert "density" in plot_run(run)
    run.predictions.score[:] = 0.0
    assert "density" not in plot_run(run)
    text = make_page(run, {})
    page = Page(text)
    assert ("url(data:image/jpeg" in text) == case.get("images", True)
    assert all(name in page.text for name in ("<img src=x onerror=alert(0)>.png", "a,b\"c' 59.png"))
    if not case.get("labelled", True):
        assert "How good" not in page.text and "unlabelled target images" in page.text and "true class" not in page.text
    if not case.get("extras", True):
        assert "Which source labels" not in page.text


def test_a_large_run_stays_below_8_mb(tmp_path):
    folder = make_run(tmp_path / ("a long name of a folder " * 4), n=5000)
    started = time.monotonic()
    text = write_report(folder).read_text(encoding="utf-8")
    assert len(text.encode()) < 8_000_000 and time.monotonic() - started < 60
    assert len({link for link in re.findall('<a href="([^"#]+)"', text)}) == 5000  # beyond the thumbnails names remain


def test_paths_in_the_files_are_not_opened_outside_of_the_data_folder(tmp_path):
    folder = make_run(tmp_path / "run", images=True, extras=False)
    secret = tmp_path / "secret.png"
    Image.new("RGB", (5, 5)).save(secret)
    file = folder / "predictions.csv"
    outside = {'a,b""c\' 1.png': "../secret.png", 'a,b""c\' 2.png': "../../../../../../etc/hostname"}
    text = file.read_text()
    for inside, path in outside.items():
        text = text.replace(inside, path)
    file.write_text(text)
    page = make_page(read_run(folder), {})
    assert "secret.png" in page and "etc/hostname" in page and not re.search('href="[^"]*(secret|hostname)', page)


def test_the_page_again_from_the_files_is_the_same(report):
    plots = {file.stem: file for file in (report / "plots").iterdir()}
    assert make_page(read_run(report), plots) == (report / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("damage", ["results.json", "config.json", "predictions.csv"])
def test_a_folder_without_a_run_is_one_clear_error(tmp_path, damage):
    folder = make_run(tmp_path / "run", images=False, extras=False)
    (folder / damage).unlink()
    with pytest.raises(UserError, match=damage):
        write_report(folder)


def test_results_may_come_before_their_file(tmp_path, blank_plots):
    folder = make_run(tmp_path / "run", images=False)
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").unlink()
    assert "60.0 %" in write_report(folder, results).read_text(encoding="utf-8")  # oracle_os


@needs_browser
def test_a_browser_shows_it(report, tmp_path):
    address = (report / "report.html").as_uri()
    frames = "".join(f'<iframe style="width:{width}px;height:900px" src="{address}"></iframe>' for width in (1280, 390))
    (tmp_path / "frames.html").write_text(f"""{frames}<pre id=out></pre><script>onload = () => {{
        out.textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(frame => {{
            const page = frame.contentDocument, root = page.documentElement, images = [...page.images]
            page.querySelectorAll("details").forEach(fold => fold.open = true)
            const thumbs = [...page.querySelectorAll(".t")]
            return {{images: images.length, broken: images.filter(image => !image.naturalWidth).length, width: root.scrollWidth,
                     letters: getComputedStyle(page.body).fontSize, sections: page.querySelectorAll("section").length,
                     thumbs: thumbs.length, bare: thumbs.filter(t => getComputedStyle(t).backgroundImage == "none").length}}
        }}))}}</script>""")
    seen = browse("--dump-dom", page=tmp_path / "frames.html")
    desk, phone = json.loads(re.search(r'<pre id="out">(.*?)</pre>', seen.stdout).group(1))
    assert "CONSOLE" not in seen.stderr, seen.stderr
    for frame, width in ((desk, 1280), (phone, 390)):
        assert frame["images"] == 8 and frame["broken"] == 0 and frame["sections"] == 6
        assert frame["thumbs"] > 100 and frame["bare"] == 0  # the style sheet is the one that the policy allows
        assert frame["width"] <= width and frame["letters"] == "16px"  # nothing sticks out sideways
    browse(f"--print-to-pdf={tmp_path / 'page.pdf'}", page=report / "report.html")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_unknown_images_come_in_the_groups_that_the_run_found_with_its_warnings(tmp_path):
    make_run(tmp_path / "run", images=False)
    run = read_run(tmp_path / "run", {})
    unknown = run.predictions.predicted == SPLIT.unknown
    groups = np.where(unknown, np.arange(60) % 2, -1)
    groups[np.flatnonzero(unknown)[0]] = -1
    facts = {
        "called_unknown": unknown.mean(),
        "share": 0.2,
        "share_interval": [0.1, 0.3],
        "share_known": True,
        "decides": False,
        "warnings": ["too <much>"],
    }
    write_json(tmp_path / "run" / "target_model.json", {**facts, "groups": groups.tolist()})
    run = read_run(tmp_path / "run", {})
    found = unknown_groups(run, DataFolder(run.config, run.folder))
    assert [group.title for group in found] == ["Group 1", "Group 2", "Others"]
    assert [len(group.items) for group in found] == [np.count_nonzero(unknown & (groups == g)) for g in (0, 1, -1)]
    text = make_page(run, {})
    assert "too &lt;much&gt;" in text and "10.0 % to 30.0 %" in text
    write_json(tmp_path / "run" / "target_model.json", {**facts, "groups": [0, 1]})  # of another run: pages by score
    assert unknown_groups(read_run(tmp_path / "run", {}), DataFolder(run.config, run.folder))[0].title.startswith("Score")
    write_json(tmp_path / "run" / "target_model.json", {"called_unknown": 0.5, "warnings": ["few images"]})  # without a model
    assert "few images" in make_page(read_run(tmp_path / "run"), {})


def test_text_is_escaped_by_its_type_whatever_a_template_says():
    from jinja2 import TemplateAssertionError

    from tllib_ext.report.templating import _environment

    with pytest.raises(TemplateAssertionError, match="safe"):
        _environment().from_string("{{ text | safe }}")
    shown = _environment().from_string("{% autoescape false %}{{ text }}{% endautoescape %}").render(text="<script>")
    assert shown == "&lt;script&gt;"


def test_the_text_of_an_edited_label_model_is_text(tmp_path):
    make_run(tmp_path / "run")
    file = tmp_path / "run" / "label_model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rate_text": "<script>alert(1)</script>"}))
    run = read_run(tmp_path / "run")
    assert "&lt;script&gt;alert(1)" in make_page(run, {}) and "<script>alert(1)" not in make_page(run, {})
