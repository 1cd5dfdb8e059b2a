"""The mypy plugin: silent on valid programs, a check's words on mistakes, right with a warm cache and in the daemon."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import count
from pathlib import Path

import pytest

import hfdsl as hf

ROOT = Path(__file__).parents[2]
PORTS = "tests/typing/plugin/ports.py"
CASES = "tests/typing/cases"
VALID = ("tests/check/programs", f"{CASES}/program.py")
MISTAKEN = (f"{CASES}/mistakes.py", f"{CASES}/wirings.py", PORTS)
CONFIG = """
[mypy]
plugins = hfdsl.tools.mypy_plugin
strict = True
show_traceback = True
disable_error_code = empty-body
explicit_package_bases = True
untyped_calls_exclude = torch, transformers
[mypy-reasoning_gym.*]
ignore_missing_imports = True
"""
UNREAD = """
[mypy-sympy.*,torch._dynamo.*,torch._export.*,torch._inductor.*,torch.ao.*,torch.distributed.*,torch.export.*,torch.fx.*]
follow_imports = skip
[mypy-torch.onnx.*,transformers.*]
follow_imports = skip
"""
"""What no annotation of a program names, and would take most of the time; ``make mypy`` reads it."""
pytest.importorskip("mypy")
pytestmark = pytest.mark.xdist_group("plugin")  # one process: the cache is one


def mypy(folder: Path, *arguments: str, program: str = "mypy") -> str:
    is_daemon = program != "mypy"  # it looks for what it has not read at every change
    (folder / "mypy.ini").write_text(CONFIG if is_daemon else CONFIG + UNREAD, "utf-8")
    command = [sys.executable, "-m", *program.split()]
    # The cache stays: what torch says of itself need not be read at every run.
    cache = ROOT / ".mypy_cache" / ("daemon" if is_daemon else "plugin")
    options = ["--config-file", str(folder / "mypy.ini"), "--cache-dir", str(cache)]
    paths = os.pathsep.join(map(str, (folder, ROOT)))
    environment = os.environ | {"MYPYPATH": paths, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [*command, *options, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """One run over all programs; what it says of each line that has an error."""
    output = mypy(tmp_path_factory.mktemp("plugin"), *VALID, *MISTAKEN)
    messages: dict[str, dict[int, str]] = {}
    for match in re.finditer(r"^(.+?):(\d+): error: (.*)$", output, re.MULTILINE):
        messages.setdefault(match[1], {})[int(match[2])] = match[3]
    return messages


def marked(file: str) -> dict[int, str]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return {number: line.partition("# E: ")[2] for number, line in enumerate(lines, 1) if "# E: " in line}


def test_valid_programs_are_clean(said: dict[str, dict[int, str]]) -> None:
    assert {file: lines for file, lines in said.items() if file not in MISTAKEN} == {}


@pytest.mark.nightly  # mypy reads all of hfdsl.rl
def test_the_examples_are_clean(tmp_path: Path) -> None:
    assert ": error:" not in mypy(tmp_path, "examples")


@pytest.mark.parametrize("file", MISTAKEN)
def test_every_mistake_is_found_and_nothing_else(file: str, said: dict[str, dict[int, str]]) -> None:
    assert set(said[file]) == set(marked(file))


def test_a_mistake_has_the_code_that_a_check_gives_it(said: dict[str, dict[int, str]]) -> None:
    codes = {line: text.rpartition("  [")[2].rstrip("]") for line, text in said[PORTS].items()}
    assert codes == marked(PORTS)
    assert set(codes.values()) == {"HF204", "HF205", "HF210", "HF220", "HF401", "call-arg"}


def test_a_mistake_is_reported_in_the_words_of_a_check(said: dict[str, dict[int, str]]) -> None:
    spec = importlib.util.spec_from_file_location("ports", ROOT / PORTS)
    assert spec is not None
    assert spec.loader is not None
    ports = sys.modules["ports"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ports)
    assert ports.right.check().errors == ()
    report: hf.Report = ports.wrong.check()
    rows = re.compile(r" of [\w*]+ rows")  # a check knows how many
    reported = {f.primary.span.line: f"{rows.sub('', f.message)}  [{f.code}]" for f in report.errors}
    assert set(reported) == set(said[PORTS])
    # The two that differ: a merge names the calls that make a column, and mypy has words of its own for a keyword.
    assert {marked(PORTS)[line] for line in reported if reported[line] != said[PORTS][line]} == {"HF205", "call-arg"}


# -- normal forms, against numbers


def expression(rng: random.Random, depth: int) -> tuple[str, Callable[[dict[str, Fraction]], Fraction]]:
    """A dim as text, and its number for given sizes."""
    if depth == 0 or rng.random() < 0.2:
        name = rng.choice(["P", "R", "2", "3"])
        if name in "PR":
            return name, lambda sizes: sizes[name]
        return f"Literal[{name}]", lambda sizes: Fraction(int(name))
    left, left_value = expression(rng, depth - 1)
    operation = rng.choice(["Add", "Mul", "Div"])
    right, right_value = expression(rng, 0 if operation == "Div" else depth - 1)
    values: dict[str, Callable[[dict[str, Fraction]], Fraction]] = {
        "Add": lambda sizes: left_value(sizes) + right_value(sizes),
        "Mul": lambda sizes: left_value(sizes) * right_value(sizes),
        "Div": lambda sizes: left_value(sizes) / right_value(sizes),
    }
    return f"{operation}[{left}, {right}]", values[operation]


def test_mypy_finds_equal_what_is_the_same_number_for_all_sizes(tmp_path: Path) -> None:
    rng = random.Random(7)
    points = [{"P": Fraction(rng.randint(1, 10**6)), "R": Fraction(rng.randint(1, 10**6))} for _ in range(5)]
    pool = [expression(rng, rng.randint(1, 2)) for _ in range(300)]
    values = [tuple(value(point) for point in points) for _, value in pool]
    pairs = [(i, j) for i in range(300) for j in range(i) if values[i] == values[j] and pool[i][0] != pool[j][0]][:150]
    pairs += [(rng.randrange(300), rng.randrange(300)) for _ in range(150)]
    lines = ["from typing import Literal", "import hfdsl as hf", "from hfdsl import Add, Div, Mul, f32"]
    lines += ["class P(hf.Dim): ...", "class R(hf.Dim): ..."]
    first = len(lines) + 1
    lines += [
        f"def pair{n}(x: f32[P, {pool[i][0]}]) -> f32[P, {pool[j][0]}]: return x" for n, (i, j) in enumerate(pairs)
    ]
    (tmp_path / "pairs.py").write_text("\n".join(lines), "utf-8")
    output = mypy(tmp_path, str(tmp_path / "pairs.py"))
    refused = {int(line) - first for line in re.findall(r"pairs\.py:(\d+): error:", output)}
    assert refused == {n for n, (i, j) in enumerate(pairs) if values[i] != values[j]}
    assert 50 < len(refused) < 200


# -- several files, again and again

ROLES = """
import hfdsl as hf
from hfdsl import Add, Dispatch, f32, register
class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...
class Rollout(hf.Batch):
    whole: f32[B, Add[P, R]]
class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def update(self, whole: f32[B, Add[R, P]]) -> Rollout: raise NotImplementedError
    @register(Dispatch.ALL_TO_ALL)
    def each(self, scale: float = 1.0) -> float: raise NotImplementedError
"""
FLOW = """
from __future__ import annotations
import hfdsl as hf
from roles import Actor, Rollout
@hf.dataflow
def flow(rollout: Rollout, actor: Actor) -> hf.PerRank[float]:
    actor.update(rollout.whole)
    return actor.each(scale=[0.5])
"""
WRONG_FLOW = FLOW.replace("(rollout.whole)", "(rollout)")
WRONG_ROLES = ROLES.replace("Add[R, P]", "Add[R, R]")
DIM = (
    "flow.py:7: error: port 'whole' of 'actor.update' takes f32[B, R*2] but is wired to f32[B, P+R]: "
    "dim 1 is P+R where R*2 is needed  [HF210]"
)


@pytest.mark.nightly_besides("mypy")
@pytest.mark.parametrize("program", ["mypy", "mypy.dmypy --status-file STATUS run --"])
def test_a_change_is_seen_wherever_it_matters(tmp_path: Path, program: str) -> None:
    command = program.replace("STATUS", str(tmp_path / "status"))
    flow, roles = tmp_path / "flow.py", tmp_path / "roles.py"

    seconds = count(1_000_000_000)

    def errors(flow_text: str, roles_text: str) -> list[str]:
        for path, text in ((flow, flow_text), (roles, roles_text)):
            if not path.exists() or path.read_text("utf-8") != text:
                path.write_text(text, "utf-8")
                os.utime(path, (changed := next(seconds), changed))  # mypy tells versions apart by second and size
        output = mypy(tmp_path, str(flow), program=command)
        return [line.rpartition("/")[2] for line in output.splitlines() if ": error:" in line]

    try:
        assert errors(FLOW, ROLES) == []
        assert errors(FLOW, ROLES) == []
        assert [line.partition(" error: ")[0] for line in errors(WRONG_FLOW, ROLES)] == ["flow.py:7:"]
        assert errors(FLOW, ROLES) == []
        assert errors(FLOW, WRONG_ROLES) == [DIM]
        assert errors(FLOW, WRONG_ROLES) == [DIM]
        # The daemon of mypy 2.4 may keep the error of a decorated method that was mended, without a plugin too.
        assert program != "mypy" or errors(FLOW, ROLES) == []
    finally:
        if command != "mypy":
            subprocess.run([sys.executable, "-m", *command.split()[:3], "stop"], check=False, capture_output=True)


def test_an_ignore_may_name_the_code_or_mypys_own(tmp_path: Path) -> None:
    # In the file and not as an option, of which mypy would read everything again.
    quiet = "# mypy: no-warn-unused-ignores" + FLOW
    (tmp_path / "roles.py").write_text(WRONG_ROLES, "utf-8")
    programs = [tmp_path / f"{name}.py" for name in ("plain", "own", "mypys")]
    for program, ignore in zip(programs, ("", "  # type: ignore[HF210]", "  # type: ignore[arg-type]"), strict=True):
        program.write_text(quiet.replace("(rollout.whole)", f"(rollout.whole){ignore}"), "utf-8")
    output = mypy(tmp_path, *map(str, programs))
    assert [line.rpartition("/")[2] for line in output.splitlines() if "HF210" in line] == [f"plain.py{DIM[7:]}"]


def test_dims_take_two(tmp_path: Path) -> None:
    program = tmp_path / "one.py"
    program.write_text(ROLES.replace("Add[R, P]", "Add[R]"), "utf-8")
    assert "error: Add takes two dims, as in Add[P, R]  [HF101]" in mypy(tmp_path, str(program))
