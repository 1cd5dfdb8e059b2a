"""Reading the explain pages: title, the failing program and the mended one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "hfdsl" / "check" / "explain"


@dataclass(frozen=True)
class Page:
    title: str
    rule: str
    wrong: str
    right: str
    runs: bool  # whether the snippets show the mistake by themselves, without a cluster
    language: str = "python"


def read(code: str) -> Page:
    text = (FOLDER / f"{code}.md").read_text(encoding="utf-8")
    code_block, head = r"```(python|toml|bash|yaml)\n(.*?)```\n", r"(# [^\n]*)\n\n(.*?)\n\n"
    title, rule, heading, language, wrong, how, _, right = re.fullmatch(
        rf"{head}(Wrong.*?):\n\n{code_block}\n(Right.*?):\n\n{code_block}", text, re.DOTALL
    ).groups()  # type: ignore[union-attr]  # a page of another form is a failing test
    mended = right if how == "Right" else replaced(wrong, right)
    return Page(title, rule, wrong, mended, heading == "Wrong", language)


def replaced(program: str, lines: str) -> str:
    """``program`` with every line of ``lines`` in the place of the line that begins alike."""
    for line in filter(str.strip, lines.splitlines()):
        [old] = [candidate for candidate in program.splitlines() if head(candidate) == head(line)]
        program = program.replace(old, line)
    return program


def head(line: str) -> str:
    """What a line begins with, up to its first sign that is not a part of a name."""
    call = re.match(r"\s*@?[\w. ]+", line)
    return call.group().strip() if call else line
