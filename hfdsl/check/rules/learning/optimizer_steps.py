"""Optimizer steps: does each learn from the gradients of its own batch, and does its learning rate follow?

Six ways to lose gradients without an error::

    loss.backward(); optimizer.step()                          and no zero_grad(): those of all batches add up
    loss.backward(); optimizer.zero_grad(); optimizer.step()   none are left
    for part in parts: optimizer.zero_grad(); ...backward()    only those of the last part are left
    optimizer.step(); clip_grad_norm_(...)                     clipped after they were used
    self.optimizer = Adam(self.model.parameters()); self.model = other     a step for a model that is gone
    loss = self.head(self.model(ids)).mean()                   a head that no optimizer has

The rule reads all code of a role's class (``role_code.py``), and says nothing where it cannot read some of it. In each
block of statements it follows the order of these calls, up to a call that may do some of them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.kept_attributes import mentioned
from hfdsl.check.bodies.optimizers import is_step, made_by_torch, optimizer_parameters, steps_of, variable
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, code_of
from hfdsl.check.bodies.syntax import assigned_names
from hfdsl.check.bodies.unlearned_modules import UnlearnedModule, unlearned_modules
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Node
from hfdsl.graph.spans import definition_span

CLEARS: Final = frozenset({"_foreach_zero_", "fill_", "set_to_none", "zero_", "zero_grad"})
"""Names of what clears gradients."""

CLIPS: Final = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"})
"""Functions that clip gradients."""

GRADIENT_SOURCES: Final = frozenset({"autograd", "backward", "func"})
"""Parts of names without which nothing computes gradients."""

SCHEDULE_QUERIES: Final = frozenset({"get_last_lr", "last_epoch", "load_state_dict", "state_dict"})
"""Attributes of a schedule that take no step."""

GradientCall: TypeAlias = Literal["backward", "clear", "clip", "schedule", "step", "unknown"]


class Event(NamedTuple):
    """A call in a function that has to do with its gradients; ``unknown`` is one that may do any of it elsewhere."""

    kind: GradientCall
    place: ast.expr


class StepMistake(NamedTuple):
    """A code, what a function does, the place, its label, and advice."""

    code: str
    effect: str
    place: ast.expr
    label: str
    advice: str


def steps_have_their_gradients(context: Context) -> Iterator[Finding]:
    """HF784 and HF785: an optimizer step has the gradients of its batch alone, and its schedule steps with it."""
    program = context.program
    called, seen = dict[str, list[str]](), set[object]()
    for node in program.graph.calls:
        called.setdefault(node.role, []).append(node.method)
    for node in program.graph.calls:
        if not node.role:
            continue
        role = program.role_class(node.role)
        code = code_of(role)
        if not code.is_whole or next(steps_of(code, node.method), None) is None:
            continue
        for function, mistake in _mistakes(code, role, node.method, called[node.role]):
            if (function.definition, mistake.effect) not in seen:
                seen.add((function.definition, mistake.effect))
                yield _finding(node, function, mistake)


def _finding(node: Node, function: ReadFunction, mistake: StepMistake) -> Finding:
    return Finding(
        mistake.code,
        f"'{node.label}' {mistake.effect}",
        Label(span_of(definition_span(function.body).file, mistake.place), mistake.label),
        (Label(node.span, "called here"),),
        notes=(mistake.advice,),
    )


def _mistakes(
    code: RoleCode, role: type, method: str, called: Sequence[str]
) -> Iterator[tuple[ReadFunction, StepMistake]]:
    optimizers = made_by_torch(code)
    function, step = next(steps_of(code, method))
    if whole := _never([*code.reached("__init__", *called)], step):
        yield function, whole
        return
    for reached in code.reached(method) if len(optimizers) == 1 else ():
        for mistake in _Blocks(code, reached).mistakes():
            yield reached, mistake
    yield from _replaced(code)
    yield from _never_stepped(code)
    for module in unlearned_modules(code, role, method):
        yield module.function, _unlearned(module)


def _never(functions: Sequence[ReadFunction], step: ast.Call) -> StepMistake | None:
    """A step of gradients that no function which calls of a role reach computes, or clears."""
    names = frozenset[str]().union(*(function.names for function in functions))
    are_set = any(_sets_gradients(function.definition) for function in functions)
    if names.isdisjoint(GRADIENT_SOURCES) and not are_set:
        return StepMistake(
            "HF784",
            "takes an optimizer step, and nothing computes gradients for it: it learns nothing",
            step,
            "has no gradients",
            "call loss.backward() before the step",
        )
    if "backward" in names and names.isdisjoint(CLEARS) and not are_set:
        return StepMistake(
            "HF784",
            "takes an optimizer step, and nothing clears its gradients: those of all batches before add to them",
            step,
            "has the gradients of earlier batches, too",
            "call optimizer.zero_grad() before loss.backward()",
        )
    return None


def _sets_gradients(definition: ast.AST) -> bool:
    """Whether code sets a gradient to something that is not made of the gradient."""
    for node in nodes_of(definition):
        match node:
            case ast.Assign([ast.Attribute(_, "grad")], value):
                if not any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in nodes_of(value)):
                    return True
    return False


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of statements of a function of a role with one optimizer."""

    code: RoleCode
    function: ReadFunction

    def mistakes(self) -> Iterator[StepMistake]:
        """The mistakes of each block."""
        for node in nodes_of(self.function.definition):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield from self.of_block(block)

    def of_block(self, block: Sequence[ast.stmt]) -> Iterator[StepMistake]:
        """The mistakes in the order of the statements of a block."""
        before = list[Event]()
        for at, statement in enumerate(block):
            inner = self.events(statement)
            after = [event for later in block[at + 1 :] for event in self.events(later)]
            kinds: set[GradientCall] = {event.kind for event in inner}
            if isinstance(statement, (ast.For, ast.While)):
                yield from _of_loop(inner, kinds, before, after, _sets_gradients(statement))
            elif kinds == {"clear"} and _ends_with(before, "backward") and _begins_with(after, "step"):
                yield StepMistake(
                    "HF784",
                    "clears the gradients after backward() and before the step: it learns nothing from them",
                    inner[0].place,
                    "no gradient is left for the step",
                    "clear them before backward(), or after the step",
                )
            elif (
                kinds == {"clip"}
                and _ends_with(before, "step")
                and {event.kind for event in after} <= {"clear", "schedule"}
                and "clip" not in {event.kind for event in before}
            ):
                yield StepMistake(
                    "HF784",
                    "clips the gradients after the step that they were for: it has no effect",
                    inner[0].place,
                    "too late for the step",
                    "clip them between backward() and the step",
                )
            before += inner

    def events(self, code: ast.AST) -> list[Event]:
        """The calls in code that have to do with gradients, in the order in which they are written."""
        events = list[Event]()
        optimizers = frozenset(made_by_torch(self.code)).union(optimizer_parameters(self.function))
        schedules = made_by_torch(self.code, schedules=True)
        calls = [node for node in nodes_of(code) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if is_step(call, optimizers):
                events.append(Event("step", call))
            elif name == "step" and isinstance(call.func, ast.Attribute) and variable(call.func.value) in schedules:
                events.append(Event("schedule", call))
            elif name in ("backward", *CLEARS, *CLIPS):
                kind: GradientCall = "backward" if name == "backward" else "clear" if name in CLEARS else "clip"
                events.append(Event(kind, call))
            elif kind_within := self._within(name):
                events.append(Event(kind_within, call))
        return events

    def _within(self, name: str) -> GradientCall | None:
        """The kind of call that a call of a function of the role's code is."""
        reached = [*self.code.reached(name)] if name in self.code.functions else []
        names = frozenset[str]().union(*(function.names for function in reached))
        if not (CLEARS | GRADIENT_SOURCES | {"step"}).isdisjoint(names) or any(
            _sets_gradients(f.definition) for f in reached
        ):
            return "unknown"
        return None if names.isdisjoint(CLIPS) else "clip"


def _ends_with(events: Sequence[Event], kind: GradientCall) -> bool:
    return bool(events) and events[-1].kind == kind


def _begins_with(events: Sequence[Event], kind: GradientCall) -> bool:
    relevant = [event for event in events if event.kind != "clip"]
    return bool(relevant) and relevant[0].kind == kind


def _of_loop(
    inner: Sequence[Event], kinds: set[GradientCall], before: Sequence[Event], after: Sequence[Event], by_hand: bool
) -> Iterator[StepMistake]:
    """The mistakes of a loop over micro-batches or epochs."""
    if "unknown" in kinds:
        return
    first = {event.kind: event.place for event in reversed(inner)}
    if {"backward", "clear"} <= kinds and "step" not in kinds and _begins_with(after, "step"):
        yield StepMistake(
            "HF784",
            "clears the gradients in each pass of a loop and takes one step after it: only the last pass counts",
            first["clear"],
            "drops the gradients of the pass before",
            "clear them once, before the loop",
        )
    cleared_before = any(event.kind == "clear" for event in before)
    if {"backward", "step"} <= kinds and "clear" not in kinds and cleared_before and not by_hand:
        yield StepMistake(
            "HF784",
            "takes a step in each pass of a loop and clears the gradients once before it: passes add to each other",
            first["step"],
            "has the gradients of earlier passes, too",
            "clear them in each pass, or take one step after the loop",
        )
    if "schedule" in kinds and "step" not in kinds and any(event.kind == "step" for event in (*before, *after)):
        yield StepMistake(
            "HF785",
            "steps its schedule in each pass of a loop, and its optimizer once: the learning rate is ahead",
            first["schedule"],
            "more steps than the optimizer's",
            "step the schedule after optimizer.step()",
        )


def _replaced(code: RoleCode) -> Iterator[tuple[ReadFunction, StepMistake]]:
    """An optimizer whose constructor took the parameters of a model that another one replaces afterwards."""
    for name, (function, constructor) in made_by_torch(code).items():
        arguments = (*constructor.args, *(keyword.value for keyword in constructor.keywords))
        parts = {part for argument in arguments for part in mentioned(argument)}
        end = (constructor.end_lineno or 0, constructor.end_col_offset or 0)
        set_here = assigned_names(function.definition)
        for statement in function.definition.body:
            match statement:
                case ast.Assign([ast.Attribute(ast.Name("self"), part) as target], ast.Call() as value):
                    pass
                case _:
                    continue
            is_later = (statement.lineno, statement.col_offset) > end
            of_locals = {node.id for node in nodes_of(value) if isinstance(node, ast.Name)} & set_here
            if part in parts and is_later and part not in mentioned(value) and not of_locals:
                yield (
                    function,
                    StepMistake(
                        "HF784",
                        f"steps self.{name} with the parameters that self.{part} had before it was replaced: what it "
                        "is now does not learn",
                        target,
                        "other parameters than the optimizer's",
                        f"make self.{name} after self.{part}",
                    ),
                )


def _unlearned(module: UnlearnedModule) -> StepMistake:
    return StepMistake(
        "HF784",
        f"computes with self.{module.attribute}, and no optimizer has its parameters: they stay as they are",
        module.place,
        "never learns",
        f"give the optimizer self.{module.attribute}.parameters(), too; or say requires_grad_(False)",
    )


def _never_stepped(code: RoleCode) -> Iterator[tuple[ReadFunction, StepMistake]]:
    """A schedule that the code of a role makes, and never steps or hands on."""
    for name, (function, constructor) in made_by_torch(code, schedules=True).items():
        uses = [use for each in code.all_functions for use in _uses(each.definition, name)]
        if not set(uses) <= SCHEDULE_QUERIES or not _is_attribute(function, name):
            continue
        yield (
            function,
            StepMistake(
                "HF785",
                f"never steps its schedule, self.{name}: the learning rate stays what it is at the first step",
                constructor,
                "has no step",
                f"call self.{name}.step() after the step of the optimizer",
            ),
        )


def _is_attribute(function: ReadFunction, name: str) -> bool:
    return any(_is_own(node, name) for node in nodes_of(function.definition))


def _is_own(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and variable(node) == name


def _uses(definition: ast.AST, name: str) -> Iterator[str]:
    """The attributes that code reads of an attribute of ``self``; ``""`` for any other use."""
    read = set[ast.AST]()
    for node in nodes_of(definition):
        if isinstance(node, ast.Attribute) and _is_own(node.value, name):
            read.add(node.value)
            yield node.attr
    for node in nodes_of(definition):
        if _is_own(node, name) and node not in read and isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            yield ""
