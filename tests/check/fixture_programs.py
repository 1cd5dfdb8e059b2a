"""The programs of ``fixtures`` and ``fixtures_run``, and the TOML files of ``fixtures_config``.

Every file has a mistake in it, and marks the lines that mend it.

A line that ends in ``# bad`` is not in the mended program, and a comment ``# good: LINE`` is a line of it. ``# <-`` is
the mark of the line that the finding or the error names:

>>> print(mended('''
... def program(prompts: Prompts, actor: Actor) -> Scores:
...     # good: return actor.score(prompts.ids)
...     return actor.score(prompts.idz)  # <- bad
... '''))
<BLANKLINE>
def program(prompts: Prompts, actor: Actor) -> Scores:
    return actor.score(prompts.ids)
<BLANKLINE>
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
FIXTURES_RUN = Path(__file__).parent / "fixtures_run"
FIXTURES_CONFIG = Path(__file__).parent / "fixtures_config"
MARK = re.compile(r"  # <-(?: bad)?$", re.MULTILINE)
"""The end of the line that a finding or an error names."""


def names(folder: Path) -> list[str]:
    """The fixtures of a folder, each without ``.py``."""
    return sorted(file.stem for file in folder.glob("*.py"))


def config_names() -> list[str]:
    """The configurations of ``fixtures_config``, each without ``.toml``."""
    return sorted(file.stem for file in FIXTURES_CONFIG.glob("*.toml"))


def mended(text: str) -> str:
    """The program without its ``# bad`` lines, with its ``# good: `` lines, and without marks."""
    text = re.sub(r"^.*  # (?:<- )?bad\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^( *)# good: ", r"\1", text, flags=re.MULTILINE)
    return MARK.sub("", text)


def marked_line(file: Path) -> int:
    """The number of the one line that is marked ``# <-``."""
    lines = file.read_text("utf-8").splitlines()
    [marked] = [number for number, line in enumerate(lines, 1) if MARK.search(line)]
    return marked


@cache
def mended_folder(folder: Path) -> Path:
    """A temporary copy of ``folder`` with the mended program in the place of every fixture."""
    copy = Path(tempfile.mkdtemp(prefix="hfdsl-mended-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.glob("*.py"):
        file.write_text(mended(file.read_text("utf-8")), "utf-8")
    return copy
