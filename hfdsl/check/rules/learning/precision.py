"""Precision: do copies and references of a policy compute in the dtype in which it learns?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.check.rules.learning.ratios import divides_by_another_policy
from hfdsl.check.rules.learning.temperatures import compared_roles
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.ancestry import ancestors
from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.protocols import role_facts
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
    graph, places = context.program.graph, context.program.placements
    trained = {(role, state) for role, state, _ in _calls(graph, "writes")}
    reported: set[tuple[str, str]] = set()
    for copy, state, loading in _calls(graph, "loads"):
        for learner in _exporters(graph, loading):
            if (learner, state) not in trained or (learner, copy) in reported or not {learner, copy} <= places.keys():
                continue
            learns, samples = _dtype(places[learner]), _dtype(places[copy])
            both_known = learns is not None and samples is not None
            if both_known and learns != samples and divides_by_another_policy(context, learner, state, copy):
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


SIGNIFICANT_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
"""The significant bits of a dtype."""


def references_compute_alike(context: Context) -> Iterator[Finding]:
    """HF944: a reference computes log-probs no less precisely than the policy that is compared with them."""
    places = context.program.placements
    for pair in less_precise_references(context.program):
        yield Finding(
            "HF944",
            pair.message,
            Label(places[pair.role].span, f"computes in {pair.computes}"),
            (Label(places[pair.learner].span, f"computes in {pair.learns}"),),
            notes=(KL_BIAS,),
        )


KL_BIAS = "the KL is above 0 even if both are the same model, and its gradient pulls the policy toward rounding errors"
"""The cost of a reference of another dtype."""


@dataclass(frozen=True, slots=True)
class LessPreciseReference:
    """A policy that learns, and a reference that computes log-probs with fewer bits."""

    learner: str
    role: str
    learns: str
    computes: str

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"'{self.role}' computes in {self.computes}, and '{self.learner}', which is compared with it, learns in "
            f"{self.learns}: their log-probs of the same tokens differ even for equal weights"
        )


def less_precise_references(program: Program) -> Iterator[LessPreciseReference]:
    """The pairs of a policy and a reference of a dtype with fewer bits; a copy of the policy is HF942."""
    places = program.placements
    dtypes = {role: dtype for role, place in places.items() if (dtype := _dtype(place)) in SIGNIFICANT_BITS}
    if len(set(dtypes.values())) < 2 or program.graph.misuses:
        return
    links = role_links(program)
    for learner, role in dict.fromkeys(compared_roles(program)):
        is_copy = learner in linked_roles(links, role)
        bits = [SIGNIFICANT_BITS[dtypes[side]] for side in (learner, role) if side in dtypes]
        if len(bits) == 2 and bits[1] < bits[0] and not is_copy:
            yield LessPreciseReference(learner, role, dtypes[learner], dtypes[role])


def correction(learner: str) -> str:
    """The advice for a learner whose log-probs another dtype computes."""
    return (
        f"let both compute in the same dtype, or take the log-probs from '{learner}': call its log_probs on the "
        "rollout and train on with_log_probs(rollout, log_probs) of hfdsl.rl.functions"
    )


def _dtype(placement: Placement[Any]) -> str | None:
    return role_facts.computes.of(placement)


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
    before = ancestors(graph, [ref.node for ref in node.refs])
    return [role_of[number] for number in sorted(before & role_of.keys())]
