"""The programs of ``fixtures_run``: scripts that raise, or run to their end."""

from __future__ import annotations

import re
import runpy
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from hfdsl.check.findings import Report
from hfdsl.check.render import render
from hfdsl.errors import HfError
from hfdsl.tools.output import finding_of

FIXTURES = Path(__file__).parent / "fixtures_run"
BAD = sorted(file.stem for file in FIXTURES.glob("*_bad.py"))
GOOD = sorted(file.stem for file in FIXTURES.glob("*_good.py"))
ROOT = Path(__file__).parents[2]


def run(name: str) -> None:
    """Run a program as ``python FILE`` does; what it adds to the path, and finds there, is gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        try:
            runpy.run_path(str(FIXTURES / f"{name}.py"), run_name="__main__")  # classes of a script travel by value
        finally:
            sys.modules.pop("my_roles", None)


def raised(name: str) -> HfError:
    """What a program raises."""
    with pytest.raises(HfError) as error:
        run(name)
    return error.value


def shown(error: HfError) -> str:
    """An error as the command line shows it, with paths from the repository's root.

    Of a traceback the lines that mark columns are left out, and the numbers of hfdsl's own lines.
    """
    finding = finding_of(error)
    assert finding is not None
    with chdir(ROOT):
        text = render(Report("", (finding,))).rpartition("\n\n")[0].replace(f"{ROOT}/", "")
    text = re.sub(r"^ +[\^~]+\n", "", text, flags=re.MULTILINE)
    return re.sub(r'(File "hfdsl/[\w/]+\.py", line) \d+', r"\1 ?", text)
