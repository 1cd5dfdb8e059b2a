"""Targets are found, or it is said why not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hfdsl as hf
from hfdsl.errors import DefinitionError
from hfdsl.tools.importing import UsageError
from hfdsl.tools.target import load

Write = Callable[[str, str], str]

LONE = """
import hfdsl as hf

class B(hf.Dim): ...
class Questions(hf.Batch):
    text: hf.Obj[str, B]

@hf.dataflow
def same(questions: Questions) -> Questions:
    return questions
"""


def refused(target: str, sizes: tuple[str, ...] = ()) -> str:
    with pytest.raises(UsageError) as caught:
        load(target, sizes)
    return str(caught.value)


@pytest.mark.parametrize("target", ["shouting.py:experiment", "./shouting.py:experiment", "shouting:experiment"])
def test_an_experiment_by_path_or_module(program: str, target: str) -> None:
    loaded = load(target)
    assert loaded.experiment is not None
    assert loaded.dataflow.body.__name__ == "shout"
    assert {dim.__name__: size for dim, size in loaded.dims.items()} == {"B": 4}


def test_a_file_in_a_package_is_that_module(write: Write) -> None:
    write("lib/__init__.py", "")
    write("lib/names.py", "NAME = 'same'")
    write("lib/flows.py", "from lib.names import NAME\n" + LONE)
    loaded = load("lib/flows.py:same")
    assert loaded.source.module.__name__ == "lib.flows"
    assert not loaded.source.script
    assert load("lib.flows:same").dataflow is loaded.dataflow


def test_a_file_with_the_name_of_a_loaded_module(write: Write) -> None:
    import json

    loaded = load(write("json.py", LONE) + ":same")
    assert loaded.source.module is not json
    assert load("json.py:same").dataflow is loaded.dataflow


def test_a_folder_with_a_package_of_its_own_name_leaves_hfdsl_loaded(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a checkout of hfdsl beside the program, after targets of the one that runs."""
    file = Path(write("flow.py", LONE)).absolute()
    write("hfdsl/__init__.py", "")
    home = Path(hf.__file__).parents[1]
    monkeypatch.chdir(home)
    load("hfdsl.rl.dataflows.supervised:supervised")
    running = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "hfdsl"}
    monkeypatch.chdir(file.parent)
    load(f"{file}:same")
    assert running.items() <= sys.modules.items()


def test_siblings_of_a_file_can_be_imported(write: Write) -> None:
    write("sub/settings.py", "SIZE = 4")
    assert load(write("sub/flow.py", "from settings import SIZE\n" + LONE)).dataflow.body.__name__ == "same"


def test_a_dataflow_has_no_deployment(program: str) -> None:
    loaded = load("shouting.py:shout")
    assert loaded.experiment is None
    assert loaded.check().ok
    with pytest.raises(UsageError, match=r"'hfdsl plan' needs an hf\.Experiment"):
        loaded.deployed("plan")


def test_a_function_that_makes_a_target(program: str) -> None:
    assert load("shouting.py:make").experiment is load("shouting.py:experiment").experiment
    assert (
        refused("shouting.py:needs") == "'shouting.py:needs' takes size; a function that makes a target takes nothing"
    )


def test_the_only_target_needs_no_name(write: Write) -> None:
    assert load(write("lone.py", LONE)).dataflow.body.__name__ == "same"
    typed = "\ndef experiment() -> hf.Experiment:\n    return hf.Experiment(same, hf.Deployment())\n"
    assert load(write("made.py", LONE + typed)).experiment is not None
    assert (
        refused(write("none.py", "x = 1")) == "'none.py' has neither an hf.Experiment nor a function under @hf.dataflow"
    )


def test_a_folder_is_for_discovery(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("programs").mkdir()
    says = "'programs' is a folder: 'hfdsl check --discover programs' checks the programs in it"
    assert refused("programs") == says


def test_several_targets_are_listed(program: str) -> None:
    assert refused(program) == (
        "'shouting.py' has 2 targets; choose one:\n  shouting.py:experiment\n  shouting.py:pondering"
    )


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("shoutin.py:experiment", "there is no file 'shoutin.py'; did you mean 'shouting.py'?"),
        ("shouting.py:experimnt", "'shouting.py' has no attribute 'experimnt'; did you mean 'experiment'?"),
        (
            "shouting.py:zzz",
            "'shouting.py' has no attribute 'zzz'; its targets are: shout, ponder, experiment, pondering",
        ),
        ("nowhere.at_all:x", "there is no module 'nowhere' in the current directory or among the installed ones"),
        ("shouting.part:x", "there is no module 'shouting.part' in the current directory or among the installed ones"),
        ("shouting.py:", "'shouting.py:' is not a target; write path/to/file.py:attribute or package.module:attribute"),
        ("some/where", "'some/where' is neither a Python file nor the dotted name of a module"),
        (
            "shouting.py:Actor",
            (
                "'shouting.py:Actor' is the class Actor; a target is an hf.Experiment, a function under @hf.dataflow, "
                "or a function without parameters that returns one"
            ),
        ),
    ],
)
def test_what_is_not_there(program: str, target: str, text: str) -> None:
    assert refused(target) == text


def test_the_ending_of_a_file_makes_no_name_similar(write: Write) -> None:
    missing = Path(write("run.py", "")).with_name("sum.py")
    assert refused(str(missing)) == f"there is no file '{missing}'"


def test_a_module_that_fails_shows_its_own_frames(write: Write) -> None:
    text = refused(write("bad.py", "def f():\n    return 1 / 0\nf()\n"))
    assert text.startswith("importing '")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "importlib" not in text
    assert "tools" not in text
    assert text.count('bad.py"') == 2
    assert "SyntaxError" in refused(write("worse.py", "def f(:\n"))


def test_a_function_without_a_signature_is_called_and_fails(write: Write) -> None:
    """``inspect.signature`` refuses some built-in functions."""
    place = write("builtin.py", "import hfdsl as hf\n\nlargest = max\n")
    text = refused(f"{place}:largest")
    assert text.startswith(f"calling '{place}:largest' fails")
    assert "TypeError: max expected at least 1 argument" in text


def test_a_package_that_is_missing_is_named_with_its_extra(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # as where it is not installed
    text = refused(write("adapted.py", "from peft import LoraConfig\n"))
    assert text.startswith("importing '")
    assert text.partition("\n")[0].endswith("adapted.py' fails: peft is not installed; pip install 'hfdsl[lora]'")
    assert "install" not in refused(write("lost.py", "import no_such_package\n")).partition("\n")[0]


def test_a_wrong_declaration_is_no_usage_error(write: Write) -> None:
    with pytest.raises(DefinitionError, match="HF"):
        load(write("declared.py", "import hfdsl as hf\nclass Bad(hf.Batch):\n    x: int\n"))


def test_sizes_go_over_the_experiment(program: str) -> None:
    loaded = load("shouting.py:pondering", ["P=8", "B=16"])
    assert {dim.__name__: size for dim, size in loaded.deployed("plan").dims.items()} == {"B": 16, "P": 8}


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("B", "--set takes DIM=SIZE such as B=64, got 'B'"),
        ("B=many", "--set takes DIM=SIZE such as B=64, got 'B=many'"),
        ("Q=3", "--set Q=3: the program has no dim 'Q'; there are: B, P"),
    ],
)
def test_wrong_sizes(program: str, size: str, text: str) -> None:
    assert refused("shouting.py:pondering", (size,)) == text


def test_an_experiment_of_something_else() -> None:
    with pytest.raises(DefinitionError, match=r"HF118: an experiment takes a function under @hf\.dataflow"):
        hf.Experiment(print, hf.Deployment())  # type: ignore[arg-type]
