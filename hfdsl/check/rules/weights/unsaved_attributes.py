"""Unsaved attributes: does a checkpoint have all that roles keep in ``self`` from one step to the next?

A worked example, a reward that is centered by its running mean, beside an actor that saves its weights::

    class Judge(hf.Worker):
        def __init__(self) -> None:
            self.mean = 0.0
        @register(Dispatch.DP_PROTO)
        def score(self, rollout: Rollout) -> Scores:
            raw = rate(rollout)
            self.mean += 0.01 * (float(raw.mean()) - self.mean)     HF783
            return Scores(reward=raw - self.mean)

A run that continues from a checkpoint of step 1000 has the actor's weights of that step, and a mean of 0.0. Without
``state()`` no role says what belongs to a checkpoint, so the rule checks only dataflows in which some role has one. A
role that trains without ``state()`` cannot be saved at all (HF908). ``kept_attributes.py`` says what counts as a
change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from hfdsl.check.bodies.kept_attributes import (
    KeptChange,
    kept_changes,
    mentioned,
    methods_of,
    overridden,
    reached,
)
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Node
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.state import methods_with

STATES: Final = ("state", "load_state")
"""The methods by which a role is saved and continues."""

ALL_OF_SELF: Final = frozenset({"__dict__", "getattr", "setattr", "vars"})
"""Names by which they may reach attributes that they do not name."""


def attributes_are_saved(context: Context) -> Iterator[Finding]:
    """HF783: what a role keeps from step to step is in its state, where a role of the dataflow has one."""
    program = context.program
    called = dict[str, dict[str, Node]]()
    for node in program.graph.calls:
        if node.role:
            called.setdefault(node.role, {}).setdefault(node.method, node)
    classes = {role: program.role_class(role) for role in called}
    if not any(map(_has_state, classes.values())):
        return
    seen = set[type]()
    for role, kind in classes.items():
        if kind in seen or (not _has_state(kind) and methods_with(kind, "writes")):
            continue
        seen.add(kind)
        if (saved := _saved(kind)) is None:
            continue
        for change in kept_changes(kind, [*called[role]]):
            if change.attribute not in saved:
                yield _finding(role, kind, change, called[role])


def _has_state(kind: type) -> bool:
    return all(callable(getattr(kind, name, None)) for name in STATES)


def _saved(kind: type) -> set[str] | None:
    """The attributes that both methods mention; None if that cannot be known."""
    if any(base.__module__.startswith("torch.") for base in kind.__mro__):
        return None  # a module has a state_dict of everything
    if not _has_state(kind):
        return set()
    methods, saved = methods_of(kind), list[set[str]]()
    for name in STATES:
        own = _with_bases(kind, reached(methods, [name]))
        if own is None:
            return None
        names = {n.id for m in own for n in nodes_of(m.definition) if isinstance(n, ast.Name)}
        attributes = {attribute for method in own for attribute in mentioned(method.definition)}
        if not own or not ALL_OF_SELF.isdisjoint(names | attributes):
            return None
        saved.append(attributes)
    return saved[0] & saved[1]


def _with_bases(kind: type, own: Sequence[ReadFunction]) -> list[ReadFunction] | None:
    """Methods, and those of bases that they call by ``super()``; None if one of them cannot be read."""
    methods, of_all = methods_of(kind), [*own]
    for method in own:
        of_bases = overridden(kind, method)
        if of_bases is None:
            return None
        for base in of_bases:
            of_all += [base, *reached(methods, mentioned(base.definition))]
    return of_all


def _finding(role: str, kind: type, change: KeptChange, called: dict[str, Node]) -> Finding:
    method = change.function.definition.name
    node = called.get(method, next(iter(called.values())))
    has_state = _has_state(kind)
    lacks = "its state() and load_state() do not both have it" if has_state else f"{kind.__name__} has no state()"
    related = [Label(node.span, "called here")]
    if has_state:
        related.append(Label(definition_span(methods_of(kind)[STATES[0]].body), f"has no self.{change.attribute}"))
    return Finding(
        "HF783",
        f"'{role}.{method}' changes self.{change.attribute} from step to step, and {lacks}: a run that continues from "
        "a checkpoint starts with its initial value",
        Label(span_of(definition_span(change.function.body).file, change.place), "kept for the next step"),
        tuple(related),
        notes=(f"return self.{change.attribute} in state(), and set it in load_state(state)",),
    )
