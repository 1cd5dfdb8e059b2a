"""The fenced blocks of a page: their language, the options of their info string, and their lines."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^( *)```(\w*)(.*)$")
OPTION = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; ``line`` is that of its opening fence, from 1."""

    page: Path
    line: int
    language: str
    options: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    page_blocks: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    opening, start = None, 0
    for number, line in enumerate(lines, start=1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if opening is None:
            opening, start = fence, number
            continue
        assert not fence[2], f"{page.name}:{number}: the block of line {start} is not closed"
        text = textwrap.dedent("".join(f"{line}\n" for line in lines[start : number - 1]))
        page_blocks.append(Block(page, start, opening[2], dict(OPTION.findall(opening[3])), text))
        opening = None
    assert opening is None, f"{page.name}:{start}: a block is not closed"
    return page_blocks
