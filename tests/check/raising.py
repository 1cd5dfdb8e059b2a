"""The programs of ``fixtures_run``: scripts that raise, or run to their end."""

from __future__ import annotations

import re
import runpy
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from hfdsl.check.raised import finding_of
from hfdsl.check.report import Report
from hfdsl.errors import HfError
from tests.check.fixture_programs import FIXTURES_RUN, names

NAMES = names(FIXTURES_RUN)
ROOT = Path(__file__).parents[2]


def run(program: Path) -> None:
    """Run a program as ``python FILE`` does; what it adds to the path, and finds there, is gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        try:
            runpy.run_path(str(program), run_name="__main__")  # classes of a script travel by value
        finally:
            sys.modules.pop("my_roles", None)


def raised(name: str) -> HfError:
    """What a failing program raises."""
    with pytest.raises(HfError) as error:
        run(FIXTURES_RUN / f"{name}.py")
    return error.value


def shown(error: HfError) -> str:
    """An error as the command line shows it, with paths from the repository's root.

    Of a traceback the lines that mark columns are left out, and the numbers of hfdsl's own lines.
    """
    finding = finding_of(error)
    assert finding is not None
    with chdir(ROOT):
        text = str(Report("", (finding,))).rpartition("\n\n")[0].replace(f"{ROOT}/", "")
    text = re.sub(r"^ +[\^~]+\n", "", text, flags=re.MULTILINE)
    return re.sub(r'(File "(?:hfdsl|tests/rl)/[\w/]+\.py", line) \d+', r"\1 ?", text)
