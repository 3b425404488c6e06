"""report.html by keyboard: Tab reaches every control in reading order and shows where it is; Enter and Space open folds."""

import json
import os
import re
import subprocess

import pytest
from conftest import CHROMIUM, needs_browser
from test_page import Page, make_run

from tllib_ext.report.page import page as make_page
from tllib_ext.report.page import write_report
from tllib_ext.report.run_files import read_run

CONTROLS = "[...document.querySelectorAll('a, summary')].filter(e => e.checkVisibility())"
#: what the style sheet shows of the focus, and where it is among all elements; null outside of the page
FOCUS = """(() => { const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e)
    return e === document.body ? null : {place: [...document.querySelectorAll('*')].indexOf(e), tag: e.tagName,
        outline: style.outlineStyle + ' ' + style.outlineWidth, seen: box.bottom > 0 && box.top < innerHeight}})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("keyboard") / "run")
    write_report(folder)
    return folder


def test_every_control_is_native_and_nothing_hides_the_focus(tmp_path):
    text = make_page(read_run(make_run(tmp_path / "run", images=False)), {})
    page = Page(text)
    assert all(attributes.get("href") for tag, attributes in page.tags if tag == "a")
    assert len(re.findall(r"<details[^>]*>\s*<summary>", text)) == text.count("<details") == text.count("<summary>")
    assert not {name for _, attributes in page.tags for name in attributes} & {"tabindex", "accesskey", "autofocus", "inert"}
    css = re.search("<style>(.*?)</style>", text, re.S)[1]
    assert re.search(r":focus-visible { outline: 2px solid", css) and not re.search(r"outline:\s*(0|none)", css)


class Browser:
    """Chromium, told over a pipe what to do."""

    def __init__(self, profile):
        (read, self.write), (self.read, write) = os.pipe(), os.pipe()
        flags = "--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" 3<&{read} 4>&{write}'
        words = ["bash", "-c", command, CHROMIUM, profile]
        self.process = subprocess.Popen(words, pass_fds=(read, write), stderr=subprocess.DEVNULL)
        os.close(read), os.close(write)
        self.session, self.number, self.bytes = {}, 0, b""
        page = next(found for found in self("Target.getTargets")["targetInfos"] if found["type"] == "page")
        self.session = {"sessionId": self("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]}

    def __call__(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.bytes:
                some = os.read(self.read, 1 << 20)
                assert some, "the browser has ended"
                self.bytes += some
            first, self.bytes = self.bytes.split(b"\0", 1)
            answer = json.loads(first)
            if answer.get("id") == self.number:
                return answer["result"]

    def value(self, code):
        return self("Runtime.evaluate", expression=code, returnByValue=True)["result"].get("value")

    def press(self, key, number, text=None):
        more = {} if text is None else {"text": text}
        self("Input.dispatchKeyEvent", type="keyDown", key=key, code=key.strip() or "Space", windowsVirtualKeyCode=number, **more)
        self("Input.dispatchKeyEvent", type="keyUp", key=key, code=key.strip() or "Space", windowsVirtualKeyCode=number)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(str(tmp_path_factory.mktemp("profile")))
    yield made
    made.process.terminate()
    made.process.wait()


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_tab_reaches_every_control_and_enter_and_space_open_folds(browser, report, width, scheme):
    browser("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser("Page.navigate", url=(report / "report.html").as_uri())
    while browser.value("document.readyState") != "complete":
        pass
    controls, stops = browser.value(f"{CONTROLS}.length"), []
    for _ in range(controls + 20):
        browser.press("Tab", 9)
        stop = browser.value(FOCUS)
        if stop is None or stops and stop["place"] == stops[0]["place"]:  # without a window, Chromium begins again
            break
        stops.append(stop)
    else:
        pytest.fail("the focus does not leave the page")
    places = [stop["place"] for stop in stops]
    assert places == sorted(set(places)) and sum(stop["tag"] in ("A", "SUMMARY") for stop in stops) == controls > 50
    assert all(stop["seen"] and stop["outline"] == "solid 2px" for stop in stops)
    opened = "document.querySelector('details').open"
    browser.value("document.querySelector('summary').focus()")
    for key, number, text, wanted in (("Enter", 13, "\r", True), (" ", 32, " ", False), ("Enter", 13, "\r", True)):
        browser.press(key, number, text)
        assert browser.value(opened) is wanted
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.closest('details') === document.querySelector('details')")
    browser.value("[...document.querySelectorAll('nav a')].at(-1).focus()")
    browser.press("Enter", 13, "\r")
    browser.press("Tab", 9)
    assert browser.value("location.hash + ' ' + document.activeElement.closest('section').id") == "#run run"
