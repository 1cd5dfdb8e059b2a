"""Precision: does a role sample in the dtype in which the policy that it copies learns?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.ratios import divides_by_others
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.protocols.role_facts import computing_dtype
from hfdsl.protocols.state import effects_of

COST = (
    "bfloat16 keeps 8 significant bits: log-probs of single tokens are off by some hundredths of a nat, so some tokens "
    "are clipped and a small KL is noise"
)
"""The cost of another dtype."""


def copies_compute_alike(context: Context) -> Iterator[Finding]:
    """A role that loads a trained policy computes in its dtype, or the policy's log-probs replace those of the role.

    A role that does not say its dtype is left alone.
    """
    graph, deployment = context.program.graph, context.program.deployment
    places = deployment.placements if deployment else {}
    trained = {(role, state) for role, state, _ in _calls(graph, "writes")}
    reported: set[tuple[str, str]] = set()
    for copy, state, loading in _calls(graph, "loads"):
        for learner in _exporters(graph, loading):
            if (learner, state) not in trained or (learner, copy) in reported or not {learner, copy} <= places.keys():
                continue
            learns, samples = _dtype(places[learner]), _dtype(places[copy])
            known = learns is not None and samples is not None
            if known and learns != samples and divides_by_others(context, learner, state, copy):
                reported.add((learner, copy))
                yield Finding(
                    "HF942",
                    f"'{copy}' computes in {samples}, and '{learner}', whose weights it loads, learns in {learns}: "
                    "their log-probs of the same tokens differ, so ratios are not 1 where the policy has not changed",
                    Label(loading.span, f"'{copy}' gets the weights"),
                    (
                        Label(places[learner].span, f"computes in {learns}"),
                        Label(places[copy].span, f"computes in {samples}"),
                    ),
                    notes=(COST, correction(learner)),
                )


def correction(learner: str) -> str:
    """The advice for a learner whose log-probs another dtype computes."""
    return (
        f"let both compute in one dtype, or take the log-probs from '{learner}': call its log_probs on the rollout and "
        "train on with_log_probs(rollout, log_probs) of hfdsl.rl.functions"
    )


def _dtype(placement: Placement[Any]) -> str | None:
    return computing_dtype(placement.role, placement.args, placement.kwargs)


def _calls(graph: Graph, kind: str) -> Iterator[tuple[str, str, Node]]:
    """The calls with an effect of a kind: the role, the state, and the node."""
    for node in graph.calls:
        if isinstance(node.op, RoleCall):
            for effect in effects_of(node.op.signature.body):
                if effect.kind == kind:
                    yield node.op.role, effect.state, node


def _exporters(graph: Graph, node: Node) -> list[str]:
    """The roles whose exported state the value of a node derives from."""
    role_of = {export.id: role for role, _, export in _calls(graph, "exports")}
    seen: set[int] = set()
    pending = [ref.node for ref in node.refs]
    while pending:
        number = pending.pop()
        if number not in seen:
            seen.add(number)
            pending += [ref.node for ref in graph.nodes[number].refs]
    return [role_of[number] for number in sorted(seen & role_of.keys())]
