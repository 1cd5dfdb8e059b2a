"""The check: trace, infer, gather demands, and run every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from numbers import Integral
from operator import index
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hfdsl.check.context import EVERYTHING, Context, NumberEdits, Tester, Timing
from hfdsl.check.findings import Finding, Label, is_error, order
from hfdsl.check.program import Program
from hfdsl.check.queue_bounds import queue_bounds
from hfdsl.check.report import Coverage, Report
from hfdsl.check.rule_table import RULES, BySize
from hfdsl.check.rules.queues.spare_lags import lags_make_steps_faster
from hfdsl.check.sizes.kept_rows import KeptRows
from hfdsl.check.sizes.multiple_sizes import check_each_size
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import infer
from hfdsl.graph.parameters import with_placed_roles
from hfdsl.graph.spans import Span, caller_span, definition_span
from hfdsl.graph.trace import trace
from hfdsl.protocols import role_facts
from hfdsl.types.dims import Dim, Sizes
from hfdsl.types.numbers import is_count

if TYPE_CHECKING:
    from hfdsl.check.repair.trials import Trials


def check(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], Sizes],
    cluster: Cluster | None = None,
    call_site: Span | None = None,
    loader: Callable[[], Any] | None = None,
    *,
    numbers: NumberEdits | None = None,
    is_shuffled: bool = False,
    repairs: bool = True,
    timing: Timing | None = None,
) -> Report:
    """The report on a dataflow: every finding of every rule.

    ``call_site`` is where its sizes are given, or else ``numbers`` edits them; ``loader`` gives the batches of an
    experiment, and ``is_shuffled`` says that their rows are of different questions in random order. Without ``repairs``
    the report says only what is wrong. With ``timing`` it says how long a step of a program with queues takes.
    """
    start = perf_counter()
    try:
        context = build_context(body, deployment, dims, cluster, call_site)
    except DefinitionError as error:  # an annotation without meaning: there is no program to continue with
        return Report(body.__name__, (Finding(error.code, error.message, Label(definition_span(body))),))
    context = replace(context, loader=loader, numbers=numbers, is_shuffled=is_shuffled, timing=timing)
    return build_report(context, start, repairs=repairs)


def build_context(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], Sizes],
    cluster: Cluster | None = None,
    call_site: Span | None = None,
) -> Context:
    """The traced program with its inferred sizes.

    Raises:
        DefinitionError: HF109 if an annotation of the dataflow cannot be evaluated.
    """
    body = with_placed_roles(body, deployment.placements if deployment else ())
    graph = trace(body)
    requested: Mapping[Any, Any] = dims if isinstance(dims, Mapping) else {EVERYTHING: dims}
    sizes = {dim: numbers for dim, size in requested.items() if (numbers := _sizes_of(dim, size))}
    program = Program(graph, infer(graph), deployment, body)
    return replace(
        Context.of(program, {dim: numbers[0] for dim, numbers in sizes.items()}),
        alternatives={dim: numbers for dim, numbers in sizes.items() if len(numbers) > 1},
        invalid={dim: size for dim, size in requested.items() if dim not in sizes},
        call_site=call_site or caller_span(),
        cluster=cluster,
    )


def _sizes_of(dim: object, requested: Any) -> tuple[int, ...]:
    """The sizes given for a dim, each once; none if one of them is not a size."""
    sizes: tuple[Any, ...] = tuple(requested) if isinstance(requested, (tuple, list)) else (requested,)
    sizes = tuple(size if isinstance(size, bool) or not isinstance(size, Integral) else index(size) for size in sizes)
    all_counts = all(is_count(size) for size in sizes)  # NumPy's are as good as Python's
    return tuple(dict.fromkeys(sizes)) if all_counts and isinstance(dim, type) and issubclass(dim, Dim) else ()


def build_report(context: Context, start: float, *, repairs: bool = True) -> Report:
    """Run every rule; repairs are tried, and suggested if they work."""

    @cache
    def all_trials() -> Trials:
        from hfdsl.check.repair.trials import Trials  # late: a program without findings needs no repairs

        return Trials(context, run_rules)

    def tester(finding: Finding) -> Tester | None:
        return partial(all_trials().removes, finding) if all_trials().admit(finding) else None

    asked = replace(context, trials=tester if repairs else None, search=repairs)
    findings = order(run_rules(asked))
    if findings:
        from hfdsl.check.suppressions import unsuppressed

        kept_rows = KeptRows(context.program)
        findings = tuple(map(kept_rows.explained, unsuppressed(findings)))
    milliseconds = (perf_counter() - start) * 1000
    nodes, roles = len(context.program.graph.nodes), len(context.program.graph.roles)
    counts = f"{nodes} node{'s' * (nodes != 1)}, {roles} role{'s' * (roles != 1)}"
    coverage = Coverage(
        checked=sum(len(part.bindings) for part in context.components),
        combinations=sum(part.combinations for part in context.components),
        search_cut_off=context.budget.exhausted,
    )
    engines = [f"'{role}' samples with {engine}" for role, engine in _engines(context.program.placements)]
    times = () if any(map(is_error, findings)) else _times(asked)
    facts = f" ({', '.join([counts, *engines, *times, *coverage.omissions, f'{milliseconds:.1f} ms'])})"
    report = Report(context.program.graph.name, findings, facts, coverage)
    return replace(report, queues=queue_bounds(context)) if report.ok and context.program.split.queues else report


def _times(context: Context) -> Iterator[str]:
    """The time of a step and its bottleneck."""
    if (time := context.step_time) is not None:
        yield f"{time.seconds:.4g} s per step, longest {time.bottleneck}"


def _engines(placements: Mapping[str, Placement[Any]]) -> Iterator[tuple[str, str]]:
    """The roles that sample with another engine than the trainer's, and the engine."""
    for role, place in placements.items():
        if engine := role_facts.samples_with.of(place):
            yield role, engine


def run_rules(context: Context) -> Sequence[Finding]:
    """The findings of all rules, those of sizes for each combination of them."""
    findings: dict[tuple[object, ...], Finding] = {}
    for rule in RULES:
        find = rule.find if isinstance(rule, BySize) else rule
        several = context.alternatives and isinstance(rule, BySize)
        for finding in check_each_size(context, find) if several else find(context):
            # A loop over mini-batches or epochs unrolls: a mistake in its body is one mistake.
            findings.setdefault((finding.code, finding.primary.span, finding.message), finding)
    if context.timing is None or any(map(is_error, findings.values())):
        return list(findings.values())
    return [*findings.values(), *lags_make_steps_faster(context, findings.values())]
