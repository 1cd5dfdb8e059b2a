"""Fixes: the repairs that are an edit of the user's text, each tried on the program before it is offered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from hfdsl.check.findings import Edit, Finding, Fix
from hfdsl.check.repair import edits
from hfdsl.check.repair.trials import Trials
from hfdsl.check.requirements import Known, holds, names
from hfdsl.check.sources import argument_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import Mismatch
from hfdsl.graph.program import Misuse, MisuseKind, Node, Ref
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span
from hfdsl.types.dims import Answer, Dim


def named(trials: Trials, finding: Finding, misuse: Misuse) -> Finding:
    """The nearest name of a column, method or port that fits where it is used."""
    if misuse.kind is MisuseKind.KEYWORD_ONLY and misuse.signature is not None:
        keywords = edits.keywords(misuse.span, misuse.signature, misuse.name)
        works = bool(keywords) and trials.written(finding, keywords)
        return _with(finding, [Fix(f"write '{misuse.name}=' before it", keywords)] if works else [])
    for name in get_close_matches(misuse.name, misuse.candidates):
        edit = edits.rename(misuse.span, misuse.name, name)
        if edit is not None and trials.written(finding, (edit,)):
            help_ = (f"did you mean '{name}'?",)
            return replace(finding, help=help_, fixes=(_renaming(misuse.name, name, edit),))
    return finding


def repeated(trials: Trials, finding: Finding, mismatch: Mismatch, port: str, times: int) -> Finding:
    """The rows of ``port`` repeated; without a text that does it, nothing is offered."""
    node = trials.subject.graph.nodes[mismatch.node]
    argument = argument_span(node.span, signature_of(node), port)
    operand = dict(node.arguments)[port]
    if argument == node.span:
        return replace(finding, help=())
    column = operand.column if isinstance(operand, Ref) else None
    for place in (argument, *([] if column is None else [_before(argument, f".{column}")])):
        edit = edits.repeat(place, times)
        if edit is not None and trials.written(finding, edit):
            text = f"repeat what is wired to '{port}': {edit[0].text}...{edit[1].text}"
            return replace(finding, help=(text,), fixes=(Fix(text, edit),))
    return replace(finding, help=())


def _before(place: Span, rest: str) -> Span:
    """A place without the ``rest`` that it ends with."""
    return replace(place, end_column=place.end_column - len(rest.encode()))


def resized(trials: Trials, finding: Finding, sizes: Mapping[type[Dim], Sequence[int]]) -> Finding:
    """Other sizes, where the number stands in the ``dims={...}`` that was given."""
    return _with(finding, _sizes(trials, finding, sizes))


def _sizes(trials: Trials, finding: Finding, sizes: Mapping[type[Dim], Sequence[int]]) -> Iterator[Fix]:
    subject = trials.subject
    for dim, numbers in sizes.items():
        for number in numbers:
            edit = edits.size(subject.asked, dim, subject.dims[dim], number)
            if edit and trials.changed(finding, replace(subject, dims={**subject.dims, dim: number})):
                yield Fix(f"set {dim} to {number}", (edit,))


def filled(trials: Trials, finding: Finding, role: str) -> Finding:
    """As many data-parallel ranks as fill the pool, or a part of the pool that is as large as the mesh."""
    placements = trials.subject.deployment.placements if trials.subject.deployment else {}
    placed, help_, fixes = placements[role], list[str](), list[Fix]()
    mesh, slots, ranks = placed.mesh, placed.pool.world_size, placed.mesh.world_size
    dp, rest = divmod(slots, mesh.pp * mesh.tp)
    if not rest and trials.placed(finding, {**placements, role: replace(placed, mesh=replace(mesh, dp=dp))}):
        help_.append(f"set dp to {dp}: {mesh.pp} * {dp} * {mesh.tp} = {slots}")
        edit = edits.axis(placed.span, "dp", mesh.dp, dp)
        alone = [other.span for other in placements.values()].count(placed.span) == 1  # else a function places several
        fixes += [Fix(f"set dp to {dp}", (edit,))] if edit is not None and alone else []
    if ranks < slots:
        part, _ = placed.pool.split([ranks, slots - ranks])
        if trials.placed(finding, {**placements, role: replace(placed, pool=part)}):
            help_.append(f"split the pool: pool.split([{ranks}, {slots - ranks}])")
    return replace(finding, help=tuple(help_), fixes=tuple(fixes))


def role_renamed(trials: Trials, finding: Finding, old: str, new: str) -> Finding:
    """A role of the deployment under the name that the dataflow has for it."""
    deployment = trials.subject.deployment
    edit = edits.rename(deployment.span, old, new) if deployment else None
    if deployment is None or edit is None:
        return finding
    works = trials.placed(finding, {new if n == old else n: p for n, p in deployment.placements.items()})
    return _with(finding, [_renaming(old, new, edit)] if works else [])


def required(trials: Trials, finding: Finding, signature: Signature, text: str, known: Sequence[Known]) -> Finding:
    """A requirement with the name that its author meant: at every call it then holds."""
    for old in names(text):
        for new in get_close_matches(old, [*known[0].sizes, *known[0].fields]) if _unknown(old, known[0]) else ():
            meant = re.sub(rf"\b{old}\b", new, text)
            edit = edits.requirement(signature.span, text, old, new)
            if edit is not None and all(_proved(meant, one) for one in known):
                return _with(finding, [_renaming(old, new, edit)])
    return finding


def _unknown(name: str, known: Known) -> bool:
    try:
        known.lookup(name)
    except DefinitionError:
        return True
    return False


def _proved(text: str, known: Known) -> bool:
    try:
        return holds(text, known)[0] is Answer.PROVED
    except DefinitionError:
        return False


def calls_of(subject: Subject, signature: Signature) -> Iterator[Node]:
    """The calls of one method or function."""
    return (node for node in subject.graph.calls if (own := signature_of(node)) and own.span == signature.span)


def _renaming(old: str, new: str, edit: Edit) -> Fix:
    return Fix(f"replace '{old}' by '{new}'", (edit,))


def _with(finding: Finding, fixes: Any) -> Finding:
    return replace(finding, fixes=tuple(fixes))
