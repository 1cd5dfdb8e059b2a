"""Fixes: the suggestions that are edits of the user's text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from hfdsl.check.bodies.syntax import STATEMENTS, definition_of
from hfdsl.check.capacity import has_capacity, shape
from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Edit, Fix, in_words
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair import edits
from hfdsl.check.repair.alternatives import placing, with_moved_roles, with_placements
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.repair.trials import with_edits
from hfdsl.check.rules.placement.slices import narrower
from hfdsl.check.rules.placement.tensor_groups import crossings
from hfdsl.check.sizes.requirements import Scope, holds, names
from hfdsl.check.sources import argument_span, call_at, source_text, span_of
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.deploy.pools import ResourcePool, roots
from hfdsl.errors import DefinitionError
from hfdsl.graph.misuses import Misuse, MisuseKind
from hfdsl.graph.program import Input, Node, Ref
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.dims import Answer, Size
from hfdsl.types.numbers import divisors


def nearest_names(misuse: Misuse) -> Iterator[Suggestion]:
    """The nearest names of a column, method or port."""
    if misuse.kind is MisuseKind.KEYWORD_ONLY and misuse.signature is not None:
        yield from _rewritten(
            f"write '{misuse.name}=' before it", edits.keywords(misuse.span, misuse.signature, misuse.name)
        )
    for name in get_close_matches(misuse.name, misuse.candidates):
        edit = edits.rename(misuse.span, misuse.name, name)
        title = f"replace '{misuse.name}' by '{name}'"
        yield from _rewritten(f"did you mean '{name}'?", (edit,) if edit else (), title)


def repeated(context: Context, call: int, ports: Sequence[str], times: int) -> Iterator[Suggestion]:
    """The rows of the ports repeated; of columns, alternatively those of their record."""
    node = context.program.graph.nodes[call]
    operands = dict(node.arguments)
    arguments, records = list[Span](), list[Span]()
    for port in ports:
        operand, argument = operands[port], argument_span(node.span, signature_of(node), port)
        column = operand.column if isinstance(operand, Ref) else None
        arguments.append(argument)
        records += [] if column is None else [_before(argument, f".{column}")]
    for places in (arguments, records):
        changes = [edits.wrap(place, "repeat", times) for place in places]
        if changes and all(changes):
            [(before, after), *_] = [change for change in changes if change]
            text = f"repeat what is wired to {in_words(ports)}: {before.text}...{after.text}"
            yield from _rewritten(text, [edit for change in changes for edit in change or ()])


def repeated_input(context: Context, rows: Size, group: int) -> Iterator[Suggestion]:
    """The input with these rows repeated before anything reads it, so that each of its rows becomes a group."""
    program = context.program
    inputs = [(node.id, node.op.name) for node in program.graph.nodes if isinstance(node.op, Input)]
    names = [name for node, name in inputs if program.inference.rows(node) == rows]
    if program.body is None or len(names) != 1 or (definition := definition_of(program.body)) is None:
        return
    file, [name] = definition_span(program.body).file, names
    repeat = edits.spelling(file, "repeat")
    statements = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    if repeat is not None and statements and isinstance(statements[0], STATEMENTS):
        line, column = statements[0].lineno, statements[0].col_offset
        text = f"{name} = {repeat}({name}, {group})"
        change = Edit(Span(file, line, column, line, column), f"{text}; ")
        words = f"if '{name}' has one row for each question, begin with {text}"
        yield from _rewritten(words, (change,), certain=False)


def _before(place: Span, ending: str) -> Span:
    """A place without the ``ending`` that it ends with."""
    return replace(place, end_column=place.end_column - len(ending.encode()))


def exchanged(
    call: Span, signature: Signature | None, first: str, second: str, *, certain: bool = True
) -> Iterator[Suggestion]:
    """The arguments of two ports of a call, or of two columns of a record, swapped."""
    places = [argument_span(call, signature, port) for port in (first, second)]
    if call not in places:
        yield from _rewritten(f"swap what is wired to '{first}' and '{second}'", edits.swap(*places), certain=certain)


def own_column(call: Span, port: str, column: str) -> Iterator[Suggestion]:
    """The column of a record's own name, where it takes another ``column`` of the same source: ``x.port``."""
    edit = edits.rename(argument_span(call, None, port), column, port)
    yield from _rewritten(f"write .{port}", (edit,) if edit else ())


def column_of(place: Span, maker: Node, column: str) -> Iterator[Suggestion]:
    """A column of what a call made, by the name that the dataflow gave to it, in the place of another column."""
    name = edits.bound_name(maker.span)
    if name is not None:
        yield from _rewritten(f"write {name}.{column}", (Edit(place, f"{name}.{column}"),))


def value_of(place: Span, maker: Node) -> Iterator[Suggestion]:
    """The value that a call made, by the name that the dataflow gave to it, in the place of another value."""
    name = edits.bound_name(maker.span)
    if name is not None:
        yield from _rewritten(f"write {name}", (Edit(place, name),))


def merged(call: Span, maker: Node, record: str) -> Iterator[Suggestion]:
    """The record that a call made, or an input, among those that ``hf.merge`` takes."""
    written, name = call_at(call), maker.label if isinstance(maker.op, Input) else edits.bound_name(maker.span)
    if written is not None and name is not None and written.args and not written.keywords:
        last = span_of(call.file, written.args[-1])
        end = replace(last, line=last.end_line, column=last.end_column)
        giver = "" if isinstance(maker.op, Input) else f", the {record} that '{maker.label}' returns"
        yield from _rewritten(f"merge '{name}' too{giver}", (Edit(end, f", {name}"),))


def number(place: Span, old: float, new: float) -> Iterator[Suggestion]:
    """Another number in the place of a literal, for the author to decide."""
    written = source_text(place)
    if written is not None and re.fullmatch(r"[\d_.e+-]+", written) and float(written) == old:
        yield from _rewritten(f"set it to {new}", (Edit(place, str(new)),), certain=False)


def rewired(call: Span, signature: Signature | None, port: str, name: str) -> Iterator[Suggestion]:
    """Another value, which the dataflow has under this name, wired to a port."""
    place = argument_span(call, signature, port)
    if place != call:
        yield from _rewritten(f"wire the input '{name}' to '{port}'", (Edit(place, name),), certain=False)


def reversed_sync(call: Span) -> Iterator[Suggestion]:
    """``hf.sync`` of two roles in the other direction."""
    written = call_at(call)
    if written is not None and len(written.args) == 2 and not written.keywords:
        places = [span_of(call.file, argument) for argument in written.args]
        yield from _rewritten(f"write {_exchanged(written)}", edits.swap(*places))


def _exchanged(call: ast.Call) -> str:
    return ast.unparse(ast.Call(call.func, call.args[::-1], []))


def cut(place: Span, rows: int) -> Iterator[Suggestion]:
    """Fix the number of rows of the value at ``place``: more are cut, fewer start over from the first."""
    edit = edits.wrap(place, "fill", rows)
    if edit:
        yield from _rewritten(f"pass on a fixed number of rows: {edit[0].text}...{edit[1].text}", edit, certain=False)


def cut_groups(place: Span, group: int, rows: int) -> Iterator[Suggestion]:
    """Let the filter at ``place`` keep whole groups, and pass on a fixed number of rows."""
    call, edit = call_at(place), edits.wrap(place, "fill", rows)
    if call is None or edit is None or any(keyword.arg == "group" for keyword in call.keywords):
        return
    inside = replace(place, line=place.end_line, column=place.end_column - 1, end_column=place.end_column - 1)
    words = (
        f"keep whole groups, and pass on a fixed number of rows: "
        f"{edit[0].text}hf.filter(..., group={group}){edit[1].text}"
    )
    changed = (edit[0], Edit(inside, f", group={group}"), edit[1])
    yield from _rewritten(words, changed, certain=False)


def fewer_rows(call: Span, rows: int, most: int) -> Iterator[Suggestion]:
    """Fewer rows in a ``take``, or as many, which start over from the first."""
    written = call_at(call)
    if written is None or len(written.args) != 2:
        return
    edit = edits.literal(call.file, written.args[1], rows, most)
    yield from _rewritten(f"take {most} rows", (edit,) if edit else (), certain=False)
    name = edits.spelling(call.file, "fill")
    if name is not None:
        text = f"{name}(..., {rows}), which starts over from the first row"
        yield from _rewritten(text, (Edit(span_of(call.file, written.func), name),), certain=False)


def _rewritten(
    words: str, changes: Sequence[Edit] | None, title: str = "", *, certain: bool = True
) -> Iterator[Suggestion]:
    """An edit of the dataflow's own text, if there is one; tools apply it if it is ``certain`` to be intended.

    Other edits repair the program too, but what it then computes is for its author to decide.
    """
    if changes:
        fix = Fix(title or words, tuple(changes)) if certain else None
        yield Suggestion((Change(words, partial(with_edits, tuple(changes)), fix),))


def filled(context: Context, deployment: Mapping[str, Placement[Any]], roles: Sequence[str]) -> Iterator[Suggestion]:
    """As many data-parallel ranks as fill the pool, or else other slices, or a part of the pool as large as the mesh.

    The roles have one mesh, on one pool.
    """
    place = deployment[roles[0]]
    mesh, slots, ranks = place.mesh, place.pool.world_size, place.mesh.world_size
    dp, remainder = divmod(slots, mesh.pp * mesh.tp)
    if not remainder:
        spans = [placement.span for placement in deployment.values()]
        alone = spans.count(place.span) == 1  # else a function places several
        if context.numbers is not None:
            edit = context.numbers.axis(roles[0], "dp", dp)
        else:
            edit = edits.axis(place.span, "dp", mesh.dp, dp) if alone else None
        fix = Fix(f"set dp to {dp}", (edit,)) if edit is not None else None
        changed = {role: replace(deployment[role], mesh=replace(mesh, dp=dp)) for role in roles}
        words = f"set dp to {dp}: {mesh.pp} * {dp} * {mesh.tp} = {slots}"
        yield placing(words, changed, fix)
    else:
        nearest = sorted(divisors(slots), key=lambda tp: abs(tp - mesh.tp))
        yield from narrower(context, {role: deployment[role] for role in roles}, nearest, ": the pool is then filled")
    if ranks < slots:
        words, part = split_off(context, place.pool, ranks)
        yield placing(words, {role: replace(deployment[role], pool=part) for role in roles})


def split_off(context: Context, pool: ResourcePool, slots: int) -> tuple[str, ResourcePool]:
    """The first slots of a pool, as a part of it, in words of the user's text."""
    part, _ = pool.split([slots, pool.world_size - slots])
    if context.numbers is not None:
        return f'use a part of the pool: {{ part_of = "{pool.name}", slots = [0, {slots}] }}', part
    return f"split the pool: pool.split([{slots}, {pool.world_size - slots}])", part


def enlarged(context: Context, deployment: Mapping[str, Placement[Any]], roles: Sequence[str]) -> Iterator[Suggestion]:
    """A larger pool, if the mesh has more ranks than the pool has slots, with as many slots on a node, or on one node.

    The roles have one mesh on the pool, and no other role uses its devices. A described cluster certainly has room for
    them; without one, a pool is suggested if no other number of data-parallel ranks fills this one.
    """
    place, current = deployment[roles[0]], context.program.deployment
    pool, mesh, ranks = place.pool, place.mesh, place.mesh.world_size
    others = [placement.pool for role, placement in deployment.items() if role not in roles]
    shared = pool.parts or pool.part_of or any(pool in roots(other_pool) for other_pool in others)
    if current is None or shared or ranks <= pool.world_size:
        return
    if context.cluster is None and not pool.world_size % (mesh.pp * mesh.tp):
        return
    per_node, crossed = max(pool.processes), len(list(crossings(context)))
    one_cpu_node = not pool.use_gpu and len(pool.processes) == 1  # has room for more processes
    for width in dict.fromkeys((ranks, per_node) if one_cpu_node else (per_node, ranks)):
        processes = [min(width, ranks - first) for first in range(0, ranks, width)]
        larger = ResourcePool(processes, pool.use_gpu, pool.name)
        changes = {role: replace(deployment[role], pool=larger) for role in roles}
        moved = with_placements(current, {**deployment, **changes})
        after = with_moved_roles(changes, context)
        if after is None or len(list(crossings(after))) > crossed:
            continue
        if context.cluster is None or has_capacity(context.cluster, moved):
            words = f"give pool '{pool.name}' {ranks} slots: processes {shape(processes)}"
            yield placing(words, changes)
            return


def role_renamed(deployment: Deployment, old: str, new: str) -> Iterator[Suggestion]:
    """A role of the deployment under the name that the dataflow uses."""
    edit = edits.rename(deployment.span, old, new)
    fix = Fix(f"replace '{old}' by '{new}'", (edit,)) if edit else None
    places = {new if name == old else name: place for name, place in deployment.placements.items()}
    renamed = with_placements(deployment, places)
    yield Suggestion(
        (
            Change(
                f"rename '{old}' to '{new}'",
                lambda context: context.with_program(replace(context.program, deployment=renamed)),
                fix,
            ),
        )
    )


def required(signature: Signature, text: str, scopes: Sequence[Scope]) -> Iterator[Fix]:
    """A requirement with the name that its author meant: it then holds at every call."""
    for old in names(text):
        if not all(_unknown(old, scope) for scope in scopes):
            continue
        for new in get_close_matches(old, [*scopes[0].sizes, *scopes[0].fields]):
            corrected = re.sub(rf"\b{old}\b", new, text)
            edit = edits.requirement(signature.span, text, old, new)
            if edit is not None and all(_proved(corrected, scope) for scope in scopes):
                yield Fix(f"replace '{old}' by '{new}'", (edit,))
                return


def _unknown(name: str, scope: Scope) -> bool:
    try:
        scope.lookup(name)
    except DefinitionError:
        return True
    return False


def _proved(text: str, scope: Scope) -> bool:
    try:
        return holds(text, scope)[0] is Answer.PROVED
    except DefinitionError:
        return False


def calls_of(program: Program, signature: Signature) -> Iterator[Node]:
    """The calls of one method or function."""
    for node in program.graph.calls:
        called = signature_of(node)
        if called is not None and called.span == signature.span:
            yield node
