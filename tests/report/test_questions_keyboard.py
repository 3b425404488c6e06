"""From the page of questions to the new predictions, in a real browser and by keyboard only."""

import csv
import json
import time

import numpy as np
import pytest
from conftest import browse, needs_browser
from PIL import Image
from test_keyboard import Browser

from tllib_ext.cli.main import main
from tllib_ext.evaluation.answers_file import Question
from tllib_ext.evaluation.files import load_split, read_predictions
from tllib_ext.io import write_json
from tllib_ext.report.questions import questions_page
from tllib_ext.split import LabelSplit
from tllib_ext.training.answer_files import AnswerFiles

SPLIT = LabelSplit(["</script><b>", "=1+1", 'say "hi", bee'], ["cat"], ["dog"])
KEYS = {"Enter": (13, "\r"), "Tab": (9, None), "Backspace": (8, None), "Escape": (27, None)}


def press(browser, key):
    number, text = KEYS.get(key, (ord(key.upper()) if len(key) == 1 else 0, key))
    browser.press(key, number, text)


def picture(folder, name, colour):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (300, 200), colour).save(folder / name)
    return str(folder / name)


@pytest.fixture
def made(tmp_path):
    """A run folder with four questions, one about a file that is gone, with names that try to leave the script."""
    folder, data = tmp_path / "run", tmp_path / "data"
    folder.mkdir()
    write_json(folder / "config.json", {"root": str(data), "data": "folder", "target_name": "new", "split": SPLIT.to_dict()})
    paths = [picture(data, name, colour) for name, colour in (("<!--<b>.png", "red"), ("b,1.png", "green"), ("c.png", "blue"))]
    paths.append(str(data / "gone.png"))
    likely = ["unknown", "</script><b>", "cat", 'say "hi", bee']
    questions = [Question(i, path, likely, again=i == 0) for i, path in enumerate(paths)]
    page = folder / "questions.html"
    page.write_text(questions_page(folder, questions, 3), encoding="utf-8")
    return page, paths


@needs_browser
@pytest.mark.slow
def test_the_page_loads_from_disk_without_an_error_and_asks_nothing_of_a_network(made):
    page, _ = made
    found = browse("--dump-dom", page=page)
    assert "Question 1 of 4" in found.stdout and "CONSOLE" not in found.stderr
    text = page.read_text(encoding="utf-8")
    assert "http:" not in text and "https:" not in text and "default-src 'none'" in text
    assert text.count("<script") == 2 and text.count("</script>") == 2


@pytest.fixture
def browser(tmp_path):
    made = Browser(str(tmp_path / "profile"))
    made("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "downloads"))
    yield made
    made.process.terminate()
    made.process.wait()


def open_page(browser, page):
    browser("Page.navigate", url=page.as_uri())
    while browser.value("document.readyState") != "complete":
        time.sleep(0.05)


def downloaded(folder):
    for _ in range(200):
        if (folder / "answers.csv").is_file():
            return folder / "answers.csv"
        time.sleep(0.05)
    pytest.fail("the browser saved no answers.csv")


@needs_browser
@pytest.mark.slow
def test_class_keys_typing_back_and_saving(browser, made, tmp_path):
    page, paths = made
    open_page(browser, page)
    said = lambda: browser.value("document.getElementById('count').textContent")  # noqa: E731
    assert "asked again" in said() and browser.value("document.getElementById('picture').complete")
    assert browser.value("document.activeElement.id") == "question"
    press(browser, "1")  # the first likely class, unknown left out
    assert said().startswith("Question 2")
    press(browser, "0")
    press(browser, "Backspace")
    assert said().startswith("Question 2")
    assert browser.value("document.querySelector('[aria-pressed=true]').textContent") == "0 none of these"
    press(browser, "?")
    for letter in "bee":  # typing begins anywhere
        press(browser, letter)
    assert "bee" in browser.value("document.getElementById('near').textContent")
    press(browser, "Enter")
    assert said().startswith("Question 4") and not browser.value("document.getElementById('nopicture').hidden")
    open_page(browser, page)  # what was answered is still there
    assert said().startswith("Question 4")
    for letter in "=1":
        press(browser, letter)
    press(browser, "Escape")
    press(browser, "0")
    assert said() == "All 4 questions are answered." and browser.value("document.activeElement.id") == "save"
    press(browser, "Enter")
    with open(downloaded(tmp_path / "downloads"), newline="") as stream:
        rows = {row["path"]: row for row in csv.DictReader(stream)}
    assert [rows[path]["label"] for path in paths] == ["</script><b>", "cannot tell", 'say "hi", bee', "unknown"]
    assert {row["round"] for row in rows.values()} == {"3"}


@needs_browser
@pytest.mark.slow
def test_tab_reaches_every_control(browser, made):
    page, _ = made
    open_page(browser, page)
    seen = []
    for _ in range(20):
        press(browser, "Tab")
        seen.append(browser.value("document.activeElement.textContent.trim() || document.activeElement.id"))
        if seen.count(seen[0]) > 1:
            break
        outline = browser.value("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid" or browser.value("document.activeElement === document.body")
    assert {"1 </script><b>", "2 cat", "0 none of these", "? cannot tell", "typed", "← back"} <= set(seen)
    unnamed = browser.value(
        "[...document.querySelectorAll('button,input')].filter(e => !e.textContent && !e.labels?.length).length"
    )
    assert unnamed == 0


@needs_browser
@pytest.mark.slow
def test_from_the_command_to_the_new_predictions(browser, tmp_path, capsys):
    """ask, the page by keyboard, answer: the predictions are those of the answers."""
    rng = np.random.default_rng(0)
    data, colours = tmp_path / "data", {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 70, 230)}
    for name, base in colours.items():
        for domain in ("labelled", "new"):
            for i in range(14):
                if domain == "labelled" and name == "blue":
                    continue
                shade = np.clip(np.array(base) * (1.0 if domain == "labelled" else 0.6) + rng.normal(0, 12, 3), 0, 255)
                pixels = np.clip(shade + rng.normal(0, 10, (40, 40, 3)), 0, 255).astype(np.uint8)
                folder = data / domain / (name if domain == "labelled" else "")
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / f"{name}_{i}.png")
    run = tmp_path / "run"
    words = [
        "train",
        str(data),
        "-s",
        "labelled",
        "-t",
        "new",
        "-m",
        "mixture",
        "--freeze-backbone",
        "--arch",
        "small_cnn",
        "-b",
        "12",
    ]
    assert main([*words, "--image-size", "32", "--log", str(run), "--seed", "0"]) == 0
    assert main(["ask", str(run), "--n", "9"]) == 0
    open_page(browser, run / "questions.html")
    for _ in range(9):
        name = browser.value("document.getElementById('name').textContent").split("/")[-1].split("_")[0]
        if name == "blue":
            press(browser, "0")
        else:
            for letter in name:
                press(browser, letter)
            press(browser, "Enter")
    press(browser, "Enter")
    capsys.readouterr()
    assert main(["answer", str(run), str(downloaded(tmp_path / "downloads")), "--trust"]) == 0
    assert "9 answers" in capsys.readouterr().out
    p, split = read_predictions(run / "predictions.csv", load_split(run / "config.json")), load_split(run / "config.json")
    true = [path.split("/")[-1].split("_")[0] for path in p.path]
    names = [split.label_names[k] for k in p.predicted]
    answered = AnswerFiles(run).answers
    assert len(answered) == 9
    assert all(names[i] == (true[i] if true[i] != "blue" else "unknown") for i in range(len(true)) if int(p.index[i]) in answered)
    right = [found == (name if name != "blue" else "unknown") for found, name in zip(names, true)]
    assert np.mean(right) > 0.7
    report = (run / "report.html").read_text(encoding="utf-8")
    assert "Before and after 9 answers" in report
    assert json.loads((run / "target_model.json").read_text())["answers"]["number"] == 9
    # new images are corrected too, and a row depends on itself
    new = tmp_path / "more"
    new.mkdir()
    for name, base in colours.items():
        Image.new("RGB", (40, 40), tuple(int(0.6 * c) for c in base)).save(new / f"{name}.png")
    assert main(["predict", str(run), str(new), "--out", str(tmp_path / "new.csv")]) == 0
    assert main(["predict", str(run), str(new / "blue.png"), "--out", str(tmp_path / "one.csv")]) == 0
    with open(tmp_path / "new.csv") as together, open(tmp_path / "one.csv") as alone:
        rows = {row["path"].split("/")[-1]: row for row in csv.DictReader(together)}
        (one,) = csv.DictReader(alone)
    assert one["predicted"] == rows["blue.png"]["predicted"] and float(one["threshold"]) == 0.5
    assert float(one["score"]) == pytest.approx(float(rows["blue.png"]["score"]), abs=1e-4)
