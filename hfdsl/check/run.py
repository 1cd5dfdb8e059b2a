"""The check: trace, infer, and ask every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from hfdsl.check import placements, sizes, wiring
from hfdsl.check.findings import Finding, Label, Report, order
from hfdsl.check.subject import Subject
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import infer
from hfdsl.graph.spans import definition_span
from hfdsl.graph.trace import trace
from hfdsl.types.dims import Dim

PASSES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    wiring.misuses,
    wiring.mismatches,
    wiring.unused,
    sizes.row_arithmetic,
    sizes.whole_rows,
    sizes.requirements,
    placements.roles_have_places,
    placements.meshes_fill_pools,
    placements.constructors_take_arguments,
    placements.protocols_fit_meshes,
)


def check(body: Callable[..., Any], deployment: Deployment | None, dims: Mapping[type[Dim], int]) -> Report:
    """The report on a dataflow: every finding of every pass."""
    start = perf_counter()
    try:
        subject = examine(body, deployment, dims)
    except DefinitionError as error:  # a declaration without meaning: there is no program to go on with
        return Report(body.__name__, (Finding(error.code, error.message, Label(definition_span(body))),))
    return judge(subject, start)


def examine(body: Callable[..., Any], deployment: Deployment | None, dims: Mapping[type[Dim], int]) -> Subject:
    """The traced program with its inferred sizes.

    Raises:
        DefinitionError: where a declaration that the program names has no meaning.
    """
    graph = trace(body)
    return Subject(graph, infer(graph), deployment, dims)


def judge(subject: Subject, start: float) -> Report:
    """Ask every pass."""
    findings = order([finding for one_pass in PASSES for finding in one_pass(subject)])
    milliseconds = (perf_counter() - start) * 1000
    facts = f" ({len(subject.graph.nodes)} nodes, {len(subject.graph.roles)} roles, {milliseconds:.1f} ms)"
    return Report(subject.graph.name, findings, facts)
