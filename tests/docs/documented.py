"""Every command that README, docs, ``--help`` and the examples tell people to type."""

import ast
import re

from conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
OURS = r"(?:tllib-ext|python examples/\w+\.py|python -m tllib_ext[.\w]*)(?![\w/.-])"
#: an argument that stands for any: not a command to type
_PLACEHOLDER = re.compile(r"…|\b(RUN|SCRIPT|FOLDER|NAME|COMMAND)\b|\[")


def blocks(language):
    """Page and text of every fenced block of a language."""
    for page in PAGES:
        for text in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
            yield page.relative_to(ROOT), text


def commands():
    """Command -> the file that says it first; comments, redirections and installation are cut off."""
    found = {}
    for page, text in blocks("bash"):
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            line = line.split(" && ")[-1].split(" #")[0].strip()
            if line and not line.startswith("#"):
                found.setdefault(line, page)
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        for line in re.findall(rf"`({OURS}[^`]*)`", text):
            line = " ".join(line.split())
            if not _PLACEHOLDER.search(line) and not re.fullmatch(r"tllib-ext \w+", line):  # the name of a command
                found.setdefault(line, page.relative_to(ROOT))
    package = ROOT / "tllib_ext"
    launcher = package / "tllib" / "__main__.py"
    for file in sorted([*(package / "cli").glob("*.py"), launcher, *(ROOT / "examples").glob("*.py")]):
        text = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").replace("{prog}", f"tllib-ext {file.stem}")
        for line in examples(text):
            found.setdefault(line, file.relative_to(ROOT))
    return found


def examples(text):
    """The commands in a page of help: lines of their own, what is explained after two spaces or more cut off."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [re.split(r" {2,}| > ", line.strip())[0] for line in joined.splitlines() if re.match(rf"\s*{OURS}", line)]
    return [line for line in lines if not _PLACEHOLDER.search(line)]
