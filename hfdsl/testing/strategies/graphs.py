"""Well-typed dataflows as source text, one call per line, so that they are easy to read and to change."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import strategies as st

from hfdsl.testing.arguments import number_of

HEAD = """
import hfdsl as hf
from hfdsl.testing.sample_roles import *

@hf.dataflow
def program(prompts: SamplePrompts, actor: SampleActor, judge: SampleJudge):
"""

TAIL = """
deployment = hf.Deployment(
    actor=hf.place(SampleActor, pool=hf.ResourcePool([{train}], name="train"), mesh=hf.Mesh(dp={dp}, tp={tp})),
    judge=hf.place(SampleJudge, pool=hf.ResourcePool([{ranks}], name="judge")),
)
dims = {{B: {rows}, P: 2, R: 3}}
"""

# what can be called: text, the types that it takes, the type that it gives, and what its rows must be a multiple of
CALLS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("actor.generate({0})", ("SamplePrompts",), "SampleRollout", "dp"),
    ("actor.log_probs({0})", ("SampleRollout",), "SampleRef", "dp"),
    ("actor.log_probs(rollout={0})", ("SampleRollout",), "SampleRef", "dp"),
    (
        "actor.update({0}, {1}, advantages={2})",
        ("SampleRollout", "SampleRef", "SampleAdvantages"),
        "SampleMetrics",
        "dp",
    ),
    ("judge.score({0})", ("SampleRollout",), "SampleScores", "ranks"),
    ("judge.score({0}, scale=0.5)", ("SampleRollout",), "SampleScores", "ranks"),
    ("judge.look({0}.ids, mask={0}.mask)", ("SampleRollout",), "SampleScores", "ranks"),
    ("first(judge.opinions({0}))", ("SampleRollout",), "SampleScores", ""),
    ("weigh({0}, {1})", ("SampleScores", "SampleRef"), "SampleAdvantages", ""),
    ("weigh(ref={1}, scores={0})", ("SampleScores", "SampleRef"), "SampleAdvantages", ""),
    ("centre({0})", ("SampleAdvantages",), "SampleAdvantages", "pairs"),
    ("SampleAdvantages(advantages=whiten({0}.advantages))", ("SampleAdvantages",), "SampleAdvantages", ""),
    ("SampleRef(ref=whiten({0}.log_probs))", ("SampleRollout",), "SampleRef", ""),
    ("hf.merge(SampleRef, {0})", ("SampleRef",), "SampleRef", ""),
    ("hf.fill(hf.filter({0}, {1}.keep), 24)", ("SampleRollout", "SampleScores"), "SampleRollout", "fill"),
)


@dataclass(frozen=True)
class ProgramLine:
    """One call: its text, its result, the number of its rows, and their origin.

    Rows with one ``origin`` belong together; in ``thinned`` rows a filter may have cut pairs.
    """

    text: str
    kind: str
    rows: int
    origin: str
    thinned: bool = False


@dataclass(frozen=True)
class Program:
    """Lines ``v1 = ...``, ``v2 = ...`` of a dataflow, and its deployment.

    The roles, records and functions are those of ``hfdsl.testing.sample_roles``.
    """

    dp: int
    tp: int
    ranks: int
    rows: int
    lines: tuple[ProgramLine, ...] = ()
    train: int = field(default=0)

    def source(self) -> str:
        """The program as one would write it."""
        body = "".join(f"    v{i} = {line.text}\n" for i, line in enumerate(self.lines, 1))
        used = ", ".join(f"v{i}" for i in range(1, len(self.lines) + 1))
        tail = TAIL.format(
            train=self.train or self.dp * self.tp, dp=self.dp, tp=self.tp, ranks=self.ranks, rows=self.rows
        )
        source = f"{HEAD}{body}    return [{used}]\n{tail}"
        if "judge" in body:
            return source
        return re.sub(
            r", judge: SampleJudge|    judge=hf.place.*\n", "", source
        )  # a role that is not called has no place

    def load(self) -> dict[str, Any]:
        """The names that the source defines: ``program``, ``deployment``, ``dims``, and those of ``sample_roles``."""
        return load(self.source())

    def number(self, index: int) -> int:
        """The source line that assigns ``v{index + 1}``."""
        return HEAD.count("\n") + 1 + index

    def demanded(self, divisor: str) -> int:
        """A number that must divide the rows of a call."""
        return {"dp": self.dp, "ranks": self.ranks, "pairs": 2}.get(divisor, 1)

    def with_line(self, index: int, text: str) -> Program:
        """The program with another text in the line of ``v{index + 1}``."""
        changed = replace(self.lines[index], text=text)
        return replace(self, lines=(*self.lines[:index], changed, *self.lines[index + 1 :]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The source, which hypothesis prints."""
        for number, line in enumerate(self.source().strip().splitlines()):
            if number:
                printer.break_()
            printer.text(line)


@st.composite
def graphs(draw: st.DrawFn, *, max_nodes: int = 12) -> Program:
    """Well-typed programs of at most ``max_nodes`` calls: ``check`` finds nothing, and they run.

    They call roles with several protocols, functions of every row dependence, ``repeat``, ``minibatches``, ``take`` and
    ``filter``, on sizes, pools and meshes that divide.

    >>> from hypothesis import find
    >>> program = find(graphs(max_nodes=3), lambda program: len(program.lines) == 3)
    >>> program.load()["program"].check(program.load()["deployment"], program.load()["dims"]).ok
    True
    """
    number_of("graphs", "max_nodes=", max_nodes)
    dp, ranks = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    program = Program(dp, draw(st.sampled_from([1, 2])), ranks, draw(st.sampled_from([24, 48])))
    prompts = ProgramLine("prompts", "SamplePrompts", program.rows, "prompts")
    lines = [ProgramLine("actor.generate(prompts)", "SampleRollout", program.rows, "v1")]
    values = [("prompts", prompts), ("v1", lines[0])]
    for _ in range(draw(st.integers(min(2, max_nodes - 1), max_nodes - 1))):
        line = draw(st.sampled_from([*calls(program, values), *operations(values)]))
        lines.append(line)
        values.append((f"v{len(lines)}", line))
    return replace(program, lines=tuple(lines))


def calls(program: Program, values: list[tuple[str, ProgramLine]]) -> list[ProgramLine]:
    """The calls that work out, each on the latest values that it can take."""
    lines, result = list[ProgramLine](), f"v{len(values)}"
    for text, takes, gives, needs in CALLS:
        for latest in {line.origin: line for _, line in values}.values():
            fitting = [[n for n, v in values if (v.kind, v.origin) == (kind, latest.origin)] for kind in takes]
            if not all(fitting) or latest.rows % program.demanded(needs) or (needs == "pairs" and latest.thinned):
                continue
            if needs == "fill" and 2 * latest.rows <= 24:
                continue  # every row would be there twice (HF360)
            line = replace(latest, text=text.format(*(names[-1] for names in fitting)), kind=gives)
            if needs == "fill":
                line = replace(line, rows=24, origin=result, thinned=True)
            elif gives == "SampleRollout":
                line = replace(line, origin=result)  # samples of its own
            lines.append(line)
    return lines


def operations(values: list[tuple[str, ProgramLine]]) -> list[ProgramLine]:
    """Repeats, mini-batches and the first rows of the latest values."""
    lines = []
    for name, value in values[-3:]:
        if value.kind != "SampleMetrics":
            row_operations = [("hf.repeat({}, 2)", value.rows * 2)] if value.rows < 96 else [("{}", value.rows)]
            row_operations += [
                (f"hf.minibatches({{}}, {n})[0]", value.rows // n) for n in (2, 3) if value.rows % n == 0
            ]
            row_operations += [("hf.take({}, 12)", 12)] if value.rows >= 12 else []
            lines += [
                ProgramLine(text.format(name), value.kind, rows, text.format(value.origin), value.thinned)
                for text, rows in row_operations
            ]
    return [replace(line, thinned=line.thinned and "repeat" not in line.text) for line in lines]


_numbers = count()


def load(source: str) -> dict[str, Any]:
    """The names that the source of a program defines; its text is where messages look for it."""
    file = f"<random program {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": "random_program"}
    exec(compile(source, file, "exec"), names)  # noqa: S102  # a program of our own
    return names
