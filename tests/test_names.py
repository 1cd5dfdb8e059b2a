"""``import hfdsl`` loads a name when it is used; what type checkers, Python and ``import *`` see is the same."""

from __future__ import annotations

import ast
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hfdsl as hf

SOURCE = Path(hf.__file__).read_text("utf-8")


def imports_for_type_checkers() -> dict[str, str]:
    """Every name of the TYPE_CHECKING block with its module."""
    [block] = (s for s in ast.parse(SOURCE).body if isinstance(s, ast.If) and ast.unparse(s.test) == "TYPE_CHECKING")
    imports = [s for s in block.body if isinstance(s, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {alias.name: str(s.module) for s in imports for alias in s.names if alias.asname is None}


def test_the_table_the_imports_and_all_are_equal() -> None:
    assert imports_for_type_checkers() == hf._HOMES
    assert sorted(hf._HOMES) == sorted(hf.__all__)
    assert len(set(hf.__all__)) == len(hf.__all__)


@pytest.mark.parametrize("name", hf.__all__)
def test_every_name_is_that_of_its_module(name: str) -> None:
    assert getattr(hf, name) is getattr(sys.modules[hf._HOMES[name]], name)


def test_no_name_is_a_module_too() -> None:
    modules = {module.name for module in pkgutil.iter_modules(hf.__path__)}
    assert {"check", "errors", "graph", "tools"} <= modules
    assert modules.isdisjoint(hf.__all__)


def test_all_names_are_listed_and_come_with_a_star() -> None:
    assert set(hf.__all__) <= set(dir(hf))
    names: dict[str, object] = {}
    exec("from hfdsl import *", names)  # noqa: S102  # allowed at module level alone
    assert names.keys() - {"__builtins__"} == set(hf.__all__)


def test_another_name_is_an_attribute_error_as_any_module_has_it() -> None:
    with pytest.raises(AttributeError, match=r"^module 'hfdsl' has no attribute 'repaet'$") as raised:
        hf.repaet  # type: ignore[attr-defined]  # noqa: B018  # the mistake
    assert (raised.value.name, raised.value.obj) == ("repaet", hf)  # by which Python suggests the right one
    assert not hasattr(hf, "__wrapped__")


def test_names_are_pickled_by_their_home() -> None:
    for value in (hf.Batch, hf.repeat, hf.Dispatch.DP_PROTO, hf.Mesh(dp=2)):
        assert pickle.loads(pickle.dumps(value)) == value


def in_a_new_python(code: str) -> list[str]:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_the_import_alone_loads_no_room() -> None:
    loaded = "import sys, hfdsl; print(*(m for m in sys.modules if m.startswith('hfdsl')))"
    assert in_a_new_python(loaded) == ["hfdsl"]


def test_rooms_are_attributes_before_any_name_is_used() -> None:
    assert in_a_new_python("import hfdsl; print(hfdsl.errors.__name__, hfdsl.types.__name__)") == [
        "hfdsl.errors",
        "hfdsl.types",
    ]
