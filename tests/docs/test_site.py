"""The reference has every public name, and the options of blocks do not reach mkdocs, which would show their text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")  # an extra of its own

from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.site_hooks import PARTS, on_page_markdown, pages
from tests.test_surface import table


def test_every_public_name_has_an_entry() -> None:
    text = "".join(pages().values())
    entries = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    links = dict(re.findall(r"^`(\w+)` is \[`(\S+)`\]", text, re.MULTILINE))
    missing = [
        (module, name) for module, name in table() if name and f"{module}.{name}" not in entries and name not in links
    ]
    assert missing == []
    assert set(links.values()) <= entries


def test_every_page_of_the_reference_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in PARTS if f": {page}\n" not in navigation] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fences_have_captions_alone(page: Path) -> None:
    before = page.read_text("utf-8")
    fences = re.findall(r"^ *```(\w+)(.*)$", on_page_markdown(before), re.MULTILINE)
    assert [language for language, _ in fences] == re.findall(r"^ *```(\w+)", before, re.MULTILINE)
    assert [text for _, text in fences if not re.fullmatch(r'( title="[^"]*")?', text)] == []


def test_the_home_page_and_the_readme_have_one_program() -> None:
    programs = [
        next(block.text for block in blocks(file) if block.options.get("title") == "train.py")
        for file in (ROOT / "README.md", ROOT / "docs/index.md")
    ]
    assert programs[0] == programs[1]
