"""The page docs/compared.md, made of heads of programs in ``bad/``, times of their checks, and verdicts on mutants.

``python -m tests.corpus.table`` writes it. ``test_corpus.py`` holds that page and programs agree in all but the times.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Any

import hfdsl as hf
from hfdsl.check.codes import CODES

ROOT = Path(__file__).parent.parent.parent
BAD = Path(__file__).parent / "bad"
VALID = Path(__file__).parent / "valid"
PAGE = ROOT / "docs" / "compared.md"
MUTANTS = ROOT / "benchmarks" / "interop" / "one_knob.json"

AREAS = {
    "rows": "Rows and ranks",
    "group": "Groups of samples",
    "sizes": "Batches, mini-batches, micro-batches",
    "engine": "Lengths and engines",
    "repeat": "Repeated rows",
    "cluster": "The cluster",
    "filter": "Row counts that only the run knows",
    "pad": "Pad rows",
    "whole": "Functions of the whole batch",
    "columns": "Columns",
    "optional": "Columns that may be absent",
    "ragged": "Ragged and dense columns",
    "wiring": "Calls and constructors",
    "shape": "Shapes",
    "dtype": "Dtypes",
    "protocol": "Transfer protocols",
    "place": "Roles and GPUs",
    "weights": "Weights in two places",
    "queue": "Queues and staleness",
    "unused": "Results that are never read",
    "trace": "Values of a graph",
}
"""What the name of a program begins with, and the heading of its table."""

LOWER_CASE = ("ms-swift", "rllm", "verl", "vLLM")
"""Projects whose names begin with a lower-case letter, at the start of a sentence too."""

AS_PROCESSES = ("rows_512_over_6", "columns_tool_output_masks", "shape_two_tokenizers", "place_tp_2_on_one_gpu")
"""The programs whose check is also timed as a command of its own."""


@dataclass(frozen=True)
class Program:
    """A program with a mistake, as its file describes it."""

    file: Path
    mistake: str
    seen: str
    elsewhere: str
    line: int
    code: str

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def area(self) -> str:
        return self.name.partition("_")[0]

    @property
    def thread(self) -> str:
        """The linked thread in short: ``verl #473``."""
        *_, repository, _, number = self.seen.split("/")
        return f"{repository} #{number}"

    @cached_property
    def experiment(self) -> hf.Experiment:
        experiment: hf.Experiment = importlib.import_module(f"tests.corpus.bad.{self.name}").experiment
        return experiment


def read(file: Path) -> Program:
    """A program's head, and the one line that is marked.

    Raises:
        ValueError: where a program has not one mark, or another head.
    """
    text = file.read_text("utf-8")
    head = re.fullmatch(r"(.+)\n\nSeen: (\S+)\nElsewhere: (.+)", ast.get_docstring(ast.parse(text)) or "")
    marks = [(n, line) for n, line in enumerate(text.splitlines(), 1) if "# <- " in line]
    if head is None or len(marks) != 1:
        raise ValueError(f"{file.name}: a head of three paragraphs and one mark are needed")
    [(line, marked)] = marks
    code = marked.partition("# <- ")[2]
    return Program(file=file, mistake=head[1], seen=head[2], elsewhere=head[3], line=line, code=code)


def programs() -> list[Program]:
    """All programs with a mistake, area by area."""
    order = list(AREAS)
    return sorted(map(read, BAD.glob("*.py")), key=lambda program: (order.index(program.area), program.name))


INTRODUCTION = """\
# Bugs reported in other systems

{bad} mistakes that users of other systems made and reported in public. Each is re-created as a small program in
`tests/corpus/bad`. The third column has the report of `hfdsl check` before launch: exactly that finding, at the line
of the mistake, and no other. `tests/corpus/valid` has {valid} valid programs, which the check passes without a finding
and which run a step. Tests verify both. Times are medians of {times} checks in a warm process, on {machine}. As a
separate command, including the start of Python and the import of the program, a check takes {commands}.

A program has the algorithm, the roles and, where reported, the numbers of its thread. The second column summarizes
what that system did and when, according to the thread. Systems change, and some threads are old.

`python -m tests.corpus.table` writes this page.
"""


CONFIGURATIONS = """\
## Configurations of other libraries

Mutants of real configurations of four libraries, with one setting changed at a time, drawn without regard to hfdsl's
rules: numbers off by one, values of another type, nulls, misspelled keys and choices, dropped and contradictory
settings. The library's own code judges each mutant first, on a CPU. The table has the verdicts of `hfdsl check --from`
at its first run on each set. Rules were fixed between draws, so only the last draw of a library measures the current
rules.
[The method, its limits and the flagged mutants](interop.md#measured) are described with the readers.

| library | draw | of | refused by the library, found | no learning signal, found | accepted by the library, flagged |
|---|---|---|--:|--:|--:|
"""


def mutants(file: Path = MUTANTS) -> str:
    """The section on configurations of other libraries: a row for each set of mutants."""
    section = CONFIGURATIONS
    libraries = json.loads(file.read_text("utf-8"))
    for library in libraries.values():
        for draw in library["draws"]:
            counts = " | ".join(
                f"{part} of {count}" if count else "none drawn"
                for part, count in (draw["named"][verdict] for verdict in ("refused", "teaches nothing", "accepted"))
            )
            section += f"| {library['checkout']} | {draw['draw']} | {draw['bases']} | {counts} |\n"
    return section + refusals(libraries)


REFUSALS = """
When verl refuses the {total} mutants of its {draw} draw, and with which message. The trial uses stand-ins for Ray,
models and devices and has imported verl already, so its seconds (median, worst) are those of verl's own code up to the
refusal. The time that a launched run takes to get there, with its processes and models, was not recorded, nor were the
stages of other draws and libraries. "Names the key" counts messages that contain a key of the mutant; hfdsl's are those
of the current rules, before launch. The last row counts checks that the trial reimplements from verl's source: engines
on GPUs, and the conditions of the loop.

| when | mutants | seconds | verl names the key | hfdsl names the key | an example | verl says | hfdsl says |
|---|--:|--:|--:|--:|---|---|---|
"""


def refusals(libraries: Mapping[str, Any]) -> str:
    """When a library refuses the mutants of a draw, after how long and in which words, where that is recorded."""
    sections = list[str]()
    for draw in (draw for library in libraries.values() for draw in library["draws"] if "refusals" in draw):
        rows = draw["refusals"]
        section = REFUSALS.format(total=sum(row["mutants"] for row in rows), draw=draw["draw"])
        for row in rows:
            example, seconds = row.get("example"), row.get("seconds", ())
            words = [f"`{example[part]}`" for part in ("change", "library", "hfdsl")] if example else [""] * 3
            cells = [
                row["when"],
                row["mutants"],
                ", ".join(map(str, seconds)),
                row.get("library names", ""),
                row["hfdsl names"],
                *words,
            ]
            section += f"| {' | '.join(map(str, cells))} |\n"
        sections.append(section)
    return "".join(sections)


def render(
    programs: list[Program], milliseconds: Mapping[str, float], commands: Mapping[str, float], machine: str, times: int
) -> str:
    """The page."""
    listed = ", ".join(f"{seconds:.2f} s (`{name}`)" for name, seconds in commands.items())
    valid = len(list(VALID.glob("*.py")))
    parts = [INTRODUCTION.format(bad=len(programs), valid=valid, times=times, machine=machine, commands=listed)]
    for area, rows in groupby(programs, key=lambda program: program.area):
        parts.append(f"## {AREAS[area]}\n\n| mistake | in that system | hfdsl | ms |\n|---|---|---|--:|\n")
        for row in rows:
            report = f"{row.code} {CODES[row.code].title}"
            mistake = f"{row.mistake} [{row.thread}]({row.seen})"
            elsewhere = row.elsewhere
            if not elsewhere.startswith(LOWER_CASE):
                elsewhere = elsewhere[0].upper() + elsewhere[1:]
            parts[-1] += f"| {mistake} | {elsewhere} | {report} | {milliseconds[row.name]:.1f} |\n"
    return "\n".join([*parts, mutants()])


def without_times(page: str) -> str:
    """The page without what another machine or another run changes."""
    page = re.sub(r"\| \d+\.\d \|$", "| |", page, flags=re.MULTILINE)
    return re.sub(r"Times are medians.*?\n\n", "", page, flags=re.DOTALL)


def _median(times: int, action: Callable[[], object]) -> float:
    durations = []
    for _ in range(times):
        start = perf_counter()
        action()
        durations.append(perf_counter() - start)
    return statistics.median(durations)


def _as_command(program: Program) -> None:
    command = [sys.executable, "-m", "hfdsl", "check", str(program.file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)
    if f"[{program.code}]" not in process.stdout:
        raise RuntimeError(f"{' '.join(command)} does not report {program.code}:\n{process.stdout}{process.stderr}")


def main() -> None:
    """Measure, and write the page."""
    listed, times = programs(), 9
    for program in listed:
        program.experiment.check()
    milliseconds = {program.name: 1000 * _median(times, program.experiment.check) for program in listed}
    timed = [program for program in listed if program.name in AS_PROCESSES]
    commands = {program.name: _median(5, partial(_as_command, program)) for program in timed}
    machine = f"{os.cpu_count()} shared cores, Python {platform.python_version()}, {platform.system()}"
    PAGE.write_text(render(listed, milliseconds, commands, machine, times), encoding="utf-8")
    print(f"{PAGE}: {len(listed)} programs")


if __name__ == "__main__":
    main()
