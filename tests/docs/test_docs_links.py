"""README and docs: links lead somewhere, every page is in the contents, pictures are small."""

import re

import pytest
from conftest import ROOT

PAGES = sorted(
    [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)


def anchors(page):
    """GitHub's anchors of a page's headings, which MyST makes too."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```|`[^`\n]*`|\$[^$\n]*\$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    for link in (first or second for first, second in links):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and ROOT in (target, *target.parents), f"{page.name}: {link} is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}: no such heading, there are {list(anchors(target))}"


def test_every_page_is_in_the_table_of_contents():
    listed = re.sub(r"\(.*?\)", "", (ROOT / "docs" / "index.md").read_text())
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", listed, re.M), f"{page.name} is in no toctree of index.md"


def test_images_in_pages_are_small_and_exist():
    for path in (ROOT / "docs" / "images").glob("*.png"):
        assert path.stat().st_size < 300_000, f"{path.name} is too large for a page"
