"""What a type checker sees of ``register``: the kinds of section "Types", in plain mypy."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from collections.abc import Callable
from typing import Any, assert_type
from hfdsl.protocols import (
    Dispatch, Execute, PerRank, PerStage, Protocol, collect_all_to_all, register, register_dispatch_mode, requires,
)

def spread(group: Any, *args: Any, **kwargs: Any) -> Any: return args, kwargs

class Role:
    @register(Dispatch.THREE_D_PROTO, pad="cycle")
    @requires("B % 2 == 0")
    def joined(self, x: int) -> int: return x
    @register(Dispatch.ONE_TO_ALL)
    def listed(self, x: int) -> int: return x
    @register()
    def default(self, x: int) -> int: return x
    @register(Dispatch.THREE_D_PP_ONLY, blocking=False)
    def staged(self, x: int) -> int: return x
    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def on_zero(self, x: int) -> int: return x
    @register(dispatch_mode={"dispatch_fn": spread, "collect_fn": collect_all_to_all})
    def custom(self, x: int) -> int: return x
    @register(Protocol("MINE"))
    def declared(self, x: int) -> int: return x

role = Role()
assert_type(role.joined(1), int)
assert_type(role.listed(1), PerRank[int])
assert_type(role.default(PerRank([1])), PerRank[int])
role.default(1)  # WRONG
assert_type(role.staged(1), PerStage[int])
assert_type(role.on_zero(1), int)
assert_type(role.custom(1), int)
assert_type(role.declared(1), int)
role.joined(role.listed(1))  # WRONG
register(Dispatch.ONE_TO_ALL, pad=3)  # WRONG
role.joined(y=1)  # WRONG
"""


def test_mypy_sees_the_kinds(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # With the project's own options and cache, in which what torch says of itself may have been read already.
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    errors = [line for line in process.stdout.splitlines() if "program.py" in line and "error:" in line]
    reported = {int(line.split(":")[1]) for line in errors}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# WRONG")}
    assert reported == wrong, process.stdout
