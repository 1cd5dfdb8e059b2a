"""Trials: apply a fix to the program and check everything again before suggesting it."""

from __future__ import annotations

import functools
import io
import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Edit, Finding, Fix
from hfdsl.check.repair.edits import apply
from hfdsl.graph.infer import infer
from hfdsl.graph.trace import trace

MAX_PLACES = 16
"""The number of places in a report where repairs are tried; readers start a longer report at its top."""

MAX_VISITS = 2000
"""The number of nodes and mistakes that all trials may visit, so that every check stays fast.

In a larger program only ``hfdsl check --fix`` tries repairs.
"""

thorough: ContextVar[bool] = ContextVar("thorough", default=False)
"""Whether the repairs of all findings are tried, for a command that applies them."""

FindingKey: TypeAlias = tuple[str, str, int]
"""The key of a finding, stable under edits, which move columns and change numbers in messages."""


EDITED = "#edited-"
"""The mark in the name of a file that stands for the edited text of another one."""


def finding_key(finding: Finding) -> FindingKey:
    """The code, the file and the line."""
    return finding.code, finding.primary.span.file.partition(EDITED)[0], finding.primary.span.line


def improves(finding: FindingKey, before: Counter[FindingKey], after: Counter[FindingKey]) -> bool:
    """Whether ``finding`` has gone and no other has appeared."""
    return after <= before and after[finding] < before[finding]


@dataclass
class Trials:
    """Trials of repairs of one program; ``run_rules`` checks a program."""

    context: Context
    run_rules: Callable[[Context], Iterable[Finding]]
    admitted: set[FindingKey] = field(default_factory=set)
    results: dict[tuple[FindingKey, str, Fix | None], bool] = field(default_factory=dict)

    @cached_property
    def visits(self) -> int:
        """The number of nodes and mistakes that a trial visits."""
        graph, wrong = self.context.program.graph, self.context.program.inference.mismatches
        return len(graph.nodes) + len(graph.misuses) + len(wrong) + 1

    @cached_property
    def cost(self) -> int:
        """The cost of a trial, which runs all rules on all combinations of sizes."""
        return (self.visits + sum(demand.cost for demand in self.context.demands)) * len(self.context.combinations)

    @property
    def most(self) -> int:
        """The number of places where repairs are tried."""
        return min(MAX_PLACES, MAX_VISITS // self.visits)

    def admit(self, finding: Finding) -> bool:
        """Whether repairs of a finding are tried: at ``most`` places, and at each of them for all findings there."""
        if thorough.get() or len(self.admitted) < self.most:
            self.admitted.add(finding_key(finding))
        return finding_key(finding) in self.admitted

    @cached_property
    def before(self) -> Counter[FindingKey]:
        """The findings of the unchanged program."""
        return self._keys(self.context)

    def _keys(self, context: Context) -> Counter[FindingKey]:
        return Counter(map(finding_key, self.run_rules(context.plain)))

    def removes(self, finding: Finding, change: Change) -> bool:
        """Whether a change removes a finding and adds none: it is made, and all rules run again."""
        key = finding_key(finding), change.words, change.fix
        if change.fix is None:
            return self._removes(finding, change)
        if key not in self.results:  # the calls of an unrolled loop have the same finding
            self.results[key] = self._removes(finding, change)
        return self.results[key]

    def _removes(self, finding: Finding, change: Change) -> bool:
        if not thorough.get() and not self.context.budget.spend("visits", self.cost * (2 if change.baseline else 1)):
            return False
        changed, baseline = change.transform(self.context), change.baseline and change.baseline(self.context)
        before = self.before if baseline is None else self._keys(baseline)
        return changed is not None and improves(finding_key(finding), before, self._keys(changed))


def with_edits(edits: Sequence[Edit], context: Context) -> Context | None:
    """The program with edits in the dataflow's own text: it is compiled again, and traced."""
    body = rewritten(context.program.body, edits)
    if body is None:
        return None
    with redirect_stdout(io.StringIO()):  # what it prints was printed by the first trace
        graph = trace(body)
    program = replace(context.program, graph=graph, inference=infer(graph), body=body)
    return context.with_program(program)


def rewritten(body: Callable[..., Any] | None, edits: Sequence[Edit], edited: str | None = None) -> FunctionType | None:
    """A function as its file would define it with these edits, in the imported module; None if it is not found there.

    ``edited`` is the file of the new function, if it is another one. Only the function itself is executed: nothing else
    of the module runs a second time.
    """
    if not isinstance(body, FunctionType) or hasattr(body, "__wrapped__"):
        return None
    old = body.__code__
    text = "".join(linecache.getlines(old.co_filename))
    if any(edit.span.file != old.co_filename or "\n" in edit.text for edit in edits):
        return None
    try:
        module = compile(apply(text, edits), edited or old.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, IndexError):  # edits that do not fit, or a changed file
        return None
    identity = (old.co_qualname, old.co_firstlineno, old.co_freevars)
    codes = [c for c in _codes(module) if (c.co_qualname, c.co_firstlineno, c.co_freevars) == identity]
    if len(codes) != 1:
        return None
    [code] = codes
    new = FunctionType(code, body.__globals__, old.co_name, body.__defaults__, body.__closure__)
    new.__kwdefaults__ = body.__kwdefaults__
    functools.update_wrapper(new, body)
    del new.__wrapped__  # type: ignore[attr-defined]  # it stands for itself
    return new


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
