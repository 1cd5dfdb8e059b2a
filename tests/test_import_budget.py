"""Declaring and checking a dataflow loads the standard library and nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "ray", "networkx", "numpy", "matplotlib", "transformers")
LIGHT = ("types", "protocols", "graph", "deploy", "check", "plan")

EVERY_LIGHT_MODULE = f"""
import importlib, importlib.util, pkgutil
import hfdsl

for room in {LIGHT!r}:
    if importlib.util.find_spec(f"hfdsl.{{room}}") is not None:
        package = importlib.import_module(f"hfdsl.{{room}}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
"""


def loaded_by(code: str, libraries: tuple[str, ...] = HEAVY) -> list[str]:
    """Which of ``libraries`` a fresh interpreter holds after it ran ``code``."""
    report = f"\nimport sys\nprint('loaded:', *(name for name in {libraries!r} if name in sys.modules))"
    process = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1].split()[1:]


def test_import_hfdsl_loads_nothing_heavy() -> None:
    assert loaded_by("from hfdsl import *") == []


def test_rooms_up_to_plan_load_nothing_heavy() -> None:
    assert loaded_by(EVERY_LIGHT_MODULE) == []


READY_MADE = """
import importlib, pkgutil
import hfdsl.rl.batches, hfdsl.rl.dataflows, hfdsl.rl.workers

for package in (hfdsl.rl.dataflows, hfdsl.rl.workers):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""


def test_ready_dataflows_and_roles_load_nothing_heavy() -> None:
    assert loaded_by(READY_MADE) == []


CHECK_A_FILE = """
from hfdsl.tools.cli import main
assert main(["check", "tests.check.programs.ppo:program"]) == 0
"""


def test_a_clean_check_loads_only_what_it_reads() -> None:
    assert loaded_by(CHECK_A_FILE, ("json", "hfdsl.plan.plan", "hfdsl.runtime")) == []


def test_a_loaded_library_is_seen() -> None:
    assert loaded_by("import decimal", ("torch", "decimal")) == ["decimal"]


def test_a_failing_import_is_seen() -> None:
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        loaded_by("import hfdsl.no_such_module")
