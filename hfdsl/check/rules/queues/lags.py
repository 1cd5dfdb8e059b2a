"""Corrections: does a loss on rows of an older policy correct for the lag, with the log-probs of sampling?

A worked example::

    rollout = engine.generate(prompts)                  # log-probs of the policy at dispatch: version w
    batch   = hf.queue(rollout, lag=4, late="drop")     # read at version v, v - w <= 4
    now     = actor.log_probs(batch)                    # log-probs of the policy now: version v
    actor.update(batch, loss=Clip())                    # policy / policy at w: right
    actor.update(now, loss=Clip())                      # policy / policy at v: takes the rows for rows of version v
    actor.update(batch, loss=Reinforce())               # no ratio at all: the gradient of another policy
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from hfdsl.check.context import Context
from hfdsl.check.dependences import body_columns
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.rules.learning.ratios import formed_ratios
from hfdsl.graph.ancestry import ancestors, descendants
from hfdsl.graph.lags import Versions, trained_sources
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Input, Node, Queue, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.stages import HeldState, effects
from hfdsl.protocols.state import CORRECTS, corrected_lag, corrected_lags
from hfdsl.types.columns import ColumnSpec

DECLARE = "a loss or method with importance ratios to the log-probs of sampling declares the lag that it corrects for"

LEARNING = "to_version"
"""The column with the version of the policy that learns from a row."""


def losses_correct_lags(context: Context) -> Iterator[Finding]:
    """HF749: what trains on rows of a queue corrects for the lag that they may have."""
    for node, state, versions in _lagging_updates(context):
        correction = _correction(context, node, state.state)
        if correction is None or (most := correction.lags.get(state.state, 0)) >= versions.lag:
            continue
        others = [f"'{other}'" for other in correction.lags if other != state.state]
        corrects = f"corrects for {most} only" if most else "corrects for none"
        advice = f'{DECLARE}: @hf.corrects("{state.state}", lag={versions.lag})'
        if others and not most:
            corrects = f"corrects for rows made under {' and '.join(others)} only"
            advice = (
                f'declare @hf.corrects("{state.state}", lag={versions.lag}), or name the state {others[0]} in '
                "@hf.writes and wherever it is read, exported or loaded"
            )
        yield Finding(
            "HF749",
            f"'{node.label}' trains on rows that were made under '{state.state}' {_ago(versions)}, and "
            f"{correction.subject} {corrects}",
            Label(node.span, "trains on older rows"),
            (Label(versions.reader.span, f"made under '{state.state}'"), *_queues(context, node)),
            notes=(advice,),
        )


def staleness_is_counted_behind_queues(context: Context) -> Iterator[Finding]:
    """HF749: the version of a policy that learns from rows is counted in the stage where it does."""
    graph, stage_of = context.program.graph, context.program.split.of
    for node, state, versions in _lagging_updates(context):
        for column in context.program.origins.columns(node.id):
            stored = stored_column(graph, column.ref) if column.name == LEARNING else None
            maker = graph.nodes[stored.node] if isinstance(stored, Ref) else node
            if stage_of[maker.id] != stage_of[node.id] and not isinstance(maker.op, Input):
                yield Finding(
                    "HF749",
                    f"'{node.label}' takes '{LEARNING}' from '{maker.label}' in front of the queue, by which every row "
                    f"is 0 updates old, but rows were made under '{state.state}' {_ago(versions)}",
                    Label(maker.span, "counts the version of an earlier stage"),
                    (Label(node.span, "trains on older rows"), *_queues(context, node)),
                    notes=(f"call '{maker.label}' with the rows that come from the queue",),
                )
                break


def ratios_are_of_the_sampling_policy(context: Context) -> Iterator[Finding]:
    """HF750: the log-probs by which a lag is corrected are those that the rows were sampled with."""
    lagging = {(node.id, state): versions for node, state, versions in _lagging_updates(context)}
    behind = _behind_queues(context) if lagging else frozenset()
    for ratio in formed_ratios(context) if lagging else ():
        state = HeldState(ratio.role, ratio.state)
        versions = lagging.get((ratio.update.id, state))
        if versions is None:
            continue
        columns = context.program.origins.columns(ratio.update.id)
        direct = _maker(context, ratio.column, state)
        maker = direct or _only_maker(context, ratio.column, columns, state, behind)
        if maker is None or maker.id not in behind:
            continue
        makers = [_maker(context, column, state) for column in columns if _is_of_tokens(column, ratio.column)]
        uncorrected = _without_correction(context, ratio.update)
        if uncorrected is None and any(maker is not None and maker.id not in behind for maker in makers):
            continue  # log-probs of sampling are there as well: a loss of three policies
        passing = None if direct is not None else _function(context, ratio.column)
        advice = (
            f"let '{versions.reader.label}' return its log-probs, and train with these"
            if passing is None
            else f"let '{passing.label}' read the log-probs of sampling, and return them as well"
        )
        yield Finding(
            "HF750",
            f"'{ratio.update.label}' divides by log-probs that '{maker.label}' computes behind the queue, not by "
            f"those of the policy {_ago(versions)} that sampled the rows",
            Label(ratio.update.span, "treats them as rows of the current policy"),
            (
                Label(maker.span, "log-probs of the current policy"),
                *([Label(passing.span, "passes on no others")] if passing is not None else []),
                *_queues(context, ratio.update),
            ),
            notes=(
                advice
                if uncorrected is None
                else f"the loss {uncorrected} does not weight by the log-probs of sampling: give it a correction",
            ),
        )


def _lagging_updates(context: Context) -> Iterator[tuple[Node, HeldState, Versions]]:
    """The calls that change a state and learn from rows, and numbers, which older versions of it made.

    To imitate takes tokens alone, of any policy. A state that only judges what another trained one sampled, as a critic
    does, learns from rows of any policy: they are no samples of its own.
    """
    split = context.program.split
    if not split.queues or split.around or context.program.graph.misuses:
        return
    for node in context.program.graph.calls:
        for holder, effect in effects(node):
            versions = context.program.lags[node.id].get(holder)
            if effect.kind != "writes" or versions is None or not versions.lag or _only_judges(context, versions):
                continue
            if any(is_float_column(column.spec) for column in context.program.origins.columns(node.id)):
                yield node, holder, versions


def _only_judges(context: Context, versions: Versions) -> bool:
    """Whether the call that read the state read what another trained state had made."""
    return any(context.program.lags[ref.node] for ref in versions.reader.refs)


class _Correction(NamedTuple):
    """A correction for the lags of an update's rows: its subject in words, and by state the lag that it covers."""

    subject: str
    lags: Mapping[str, int]


def _correction(context: Context, node: Node, state: str) -> _Correction | None:
    """The correction of an update for the lag of a state; None if it is not known."""
    losses = [value for value in _options(context, node) if _is_loss(value)]
    if losses:
        loss = max(losses, key=lambda value: (corrected_lag(value, state), bool(corrected_lags(value))))
        return _Correction(f"its loss {getattr(loss, '__name__', type(loss).__name__)}", corrected_lags(loss))
    if context.program.config(node) is None:
        return None
    method = context.program.override(node) or signature_of(node)
    return _Correction("it", {} if method is None else corrected_lags(method.body))


def _without_correction(context: Context, node: Node) -> str | None:
    """The loss of an update, by its class, if it declares that it ignores the log-probs of sampling."""
    losses = [value for value in _options(context, node) if isinstance(getattr(value, "corrects_engine", None), bool)]
    return type(losses[0]).__name__ if losses and not any(loss.corrects_engine for loss in losses) else None


def _is_loss(value: object) -> bool:
    return isinstance(getattr(value, "uses_ratio", None), bool) or hasattr(value, CORRECTS)


def _options(context: Context, node: Node) -> Iterator[Any]:
    """The plain values that a call is given, or has by default, and what its role is built with."""
    signature = signature_of(node)
    wired = {name for name, _ in node.arguments}
    yield from (operand.value for _, operand in node.arguments if isinstance(operand, Constant))
    if signature is not None:
        parameters = inspect.signature(signature.body).parameters
        yield from (parameter.default for name, parameter in parameters.items() if name not in wired)
    yield from (context.program.config(node) or {}).values()


def _maker(context: Context, column: RowColumn, state: HeldState) -> Node | None:
    """The call that makes a column of floats from a version of a state; None if it is another value."""
    stored = stored_column(context.program.graph, column.ref)
    if not isinstance(stored, Ref) or not is_float_column(column.spec):
        return None
    node = context.program.graph.nodes[stored.node]
    sources = trained_sources(context.program.graph)
    reads = (holder for holder, effect in effects(node) if effect.kind == "reads")
    return node if any(state in sources.get(holder, ()) for holder in reads) else None


def _function(context: Context, column: RowColumn) -> Node | None:
    """The function whose result a column is; None if it is another value."""
    stored = stored_column(context.program.graph, column.ref)
    node = context.program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
    return node if node is not None and isinstance(node.op, FunctionCall) else None


def _only_maker(
    context: Context, ratio: RowColumn, columns: list[RowColumn], state: HeldState, behind: frozenset[int]
) -> Node | None:
    """The call behind the queue that makes all log-probs of a state which functions pass on to an update.

    None if the ratio is of other numbers, or if log-probs of sampling may be among what the functions read.
    """
    graph = context.program.graph
    makers = None if _function(context, ratio) is None else _passed_on(context, [ratio], state, behind)
    if not makers or _passed_on(context, columns, state, behind) is None:
        return None
    return graph.nodes[min(makers)]


def _passed_on(
    context: Context, columns: Iterable[RowColumn], state: HeldState, behind: frozenset[int]
) -> set[int] | None:
    """The calls behind the queue whose log-probs of a state reach some columns through functions.

    None if numbers from before the queue may be log-probs of sampling: those of a call with the state, or of a role
    that says nothing of its weights. Those of the caller are not, since a call samples the tokens.
    """
    program, makers, followed = context.program, set[int](), set[int]()
    waiting = [column for column in columns if _may_hold_log_probs(column)]
    while waiting:
        column = waiting.pop()
        stored = stored_column(program.graph, column.ref)
        if not isinstance(stored, Ref) or stored.node in followed:
            continue
        node = program.graph.nodes[stored.node]
        if _maker(context, column, state) is not None:
            if node.id not in behind:
                return None
            makers.add(node.id)
        elif isinstance(node.op, Input):
            continue
        elif isinstance(node.op, FunctionCall):
            followed.add(node.id)
            waiting += filter(_may_hold_log_probs, body_columns(program, node))
        elif isinstance(node.op, RoleCall) and (node.id in behind or not column.inner):
            followed.add(node.id)
            waiting += filter(_may_hold_log_probs, program.origins.columns(node.id))
        else:
            return None
    return makers


def _may_hold_log_probs(column: RowColumn) -> bool:
    return is_float_column(column.spec) or not isinstance(column.spec, ColumnSpec)


def _is_of_tokens(column: RowColumn, tokens: RowColumn) -> bool:
    return set(column.inner) == set(tokens.inner)


def _behind_queues(context: Context) -> frozenset[int]:
    queues = [node.id for node, _ in context.program.split.queues]
    return frozenset(descendants(context.program.graph, queues))


def _queues(context: Context, node: Node) -> Iterator[Label]:
    """The queues on the way to a call."""
    graph = context.program.graph
    for before in (graph.nodes[number] for number in sorted(ancestors(graph, [node.id]))):
        if isinstance(before.op, Queue) and before.op.splits:
            yield Label(before.span, f"lag={before.op.lag}")


def _ago(versions: Versions) -> str:
    return f"up to {versions.lag} update{'s' * (versions.lag > 1)} ago"


def all_rules(context: Context) -> Iterator[Finding]:
    """Every rule of this module; a program without queues pays for none of them."""
    if context.program.split.queues:
        rules = losses_correct_lags, staleness_is_counted_behind_queues, ratios_are_of_the_sampling_policy
        yield from chain.from_iterable(rule(context) for rule in rules)
