"""The check: trace, infer, and ask every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any

from hfdsl.check import (
    crossed,
    definitions,
    filtered,
    lowering,
    memory,
    models,
    placements,
    repeatable,
    resources,
    results,
    sizes,
    state,
    tensor_groups,
    wiring,
)
from hfdsl.check.findings import Finding, Label, Report, order
from hfdsl.check.subject import EVERYTHING, Subject
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import infer
from hfdsl.graph.spans import caller_span, definition_span
from hfdsl.graph.trace import trace
from hfdsl.types.dims import Dim

PASSES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    definitions.results_are_bound,
    definitions.records_name_dims,
    wiring.misuses,
    wiring.mismatches,
    wiring.unused,
    results.results,
    crossed.names_are_not_crossed,
    repeatable.traces_agree,
    sizes.row_arithmetic,
    sizes.filtered_rows,
    filtered.enough_rows,
    sizes.rows_split_alike,
    sizes.whole_sizes,
    sizes.dims_are_known,
    sizes.requirements,
    placements.roles_have_places,
    placements.meshes_fill_pools,
    placements.pools_are_told_apart,
    placements.constructors_take_arguments,
    placements.protocols_fit_meshes,
    placements.results_can_be_joined,
    placements.lists_fit_ranks,
    state.weights_are_fresh,
    models.classes_fit_meshes,
    resources.pools_fit_cluster,
    memory.memory_fits_gpus,
    tensor_groups.tensor_groups_stay,
    lowering.values_can_be_sent,
)


def check(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], int],
    cluster: Cluster | None = None,
) -> Report:
    """The report on a dataflow: every finding of every pass."""
    start = perf_counter()
    try:
        subject = examine(body, deployment, dims, cluster)
    except DefinitionError as error:  # an annotation without meaning: there is no program to go on with
        return Report(body.__name__, (Finding(error.code, error.message, Label(definition_span(body))),))
    return judge(subject, start)


def examine(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], int],
    cluster: Cluster | None = None,
) -> Subject:
    """The traced program with its inferred sizes.

    Raises:
        DefinitionError: HF109 where an annotation of the dataflow cannot be evaluated.
    """
    graph = trace(body)
    given: Mapping[Any, Any] = dims if isinstance(dims, Mapping) else {EVERYTHING: dims}
    known = {dim: number for dim, number in given.items() if _is_size(dim, number)}
    odd = {dim: number for dim, number in given.items() if dim not in known}
    return Subject(graph, infer(graph), deployment, known, odd, caller_span(), cluster, body)


def _is_size(dim: object, number: object) -> bool:
    whole = isinstance(number, int) and not isinstance(number, bool) and number >= 1
    return whole and isinstance(dim, type) and issubclass(dim, Dim)


def judge(subject: Subject, start: float) -> Report:
    """Ask every pass."""
    found: dict[tuple[object, ...], Finding] = {}
    for finding in (finding for one_pass in PASSES for finding in one_pass(subject)):
        # A loop over mini-batches or epochs unrolls: a mistake in its body is one mistake.
        found.setdefault((finding.code, finding.primary.span, finding.message), finding)
    findings = order(list(found.values()))
    milliseconds = (perf_counter() - start) * 1000
    facts = f" ({len(subject.graph.nodes)} nodes, {len(subject.graph.roles)} roles, {milliseconds:.1f} ms)"
    return Report(subject.graph.name, findings, facts)
