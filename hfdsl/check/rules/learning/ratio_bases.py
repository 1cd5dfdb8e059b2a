"""Bases of ratios: does a policy's update divide by the probabilities that its tokens were sampled with?

A worked example, of an update on tokens that the policy has sampled, with their ``log_probs``::

    ratio = (self.log_probs(ids) - experience.ref_log_probs.tensor).exp()
    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()       HF366: clipped around a reference
    old, now = self.log_probs(ids), self.log_probs(ids)
    loss = -((now - old).exp() * gain).mean()                                  HF366: 1, whose gradient is 0

    weight = (experience.rollout_log_probs.tensor - experience.log_probs.tensor).exp()
    ratio = (now - experience.log_probs.tensor).exp()
    loss = -(weight * ratio * gain).mean()                                     HF366: the weight is upside down

A ratio to a reference is near 1 only if the policy has learned nothing. The rule reports it where the record has the
log-probs of sampling, or where the role has sampled the tokens itself: those of a data set may be the reference's. A
weight from the one to the other makes the ratio right, too, as does a reference that follows the policy. A ratio of
log-probs to themselves has a gradient only if one of them has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hfdsl.check.bodies.interpretation import ports_of
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.collected import Collected, OwnRatio, WeightedRatio
from hfdsl.check.losses.names import LOG_PROB, OTHERS, PROXIMAL, REFERENCE, SAMPLED
from hfdsl.check.losses.terms import NOW, OWN, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.check.sources import source_text
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import RecordType
from hfdsl.graph.spans import Span
from hfdsl.types.batches import schema

CERTAIN: Final = re.compile(r"(.*[._])?(ref|reference|sft)([._].*)?")
"""The paths of columns of a reference; what is called initial may be from before the updates of a step."""


def ratios_are_to_samplers(context: Context) -> Iterator[Finding]:
    """HF366: a ratio is to the log-probs of sampling, and these have no gradient."""
    program, reported = context.program, set[Span]()
    for node in program.graph.calls if not program.graph.misuses else ():
        update = interpreted_update(program, node)
        if update is None:
            continue
        own = update.own_ratios if not update.by_name else []  # what is known by name may have no gradient
        findings = [_to_itself(context, node, ratio) for ratio in own]
        findings += [_weighted(node, ratio, reason) for ratio in update.weighted_ratios if (reason := _mistaken(ratio))]
        if _is_to_a_reference(update) and (reason := _sampled_otherwise(program, node)):
            findings += [_to_a_reference(node, place, reason) for place in update.reference_clips]
        for finding in findings:
            if finding.primary.span not in reported:
                reported.add(finding.primary.span)
                yield finding


def _to_itself(context: Context, node: Node, ratio: OwnRatio) -> Finding:
    finding = Finding(
        "HF366",
        f"'{node.label}' divides probabilities by the same ones, with their gradient: the ratio is 1 and its gradient "
        "0, so that nothing is learned from advantages",
        Label(ratio.base, "computed as those above, with a gradient"),
        (Label(ratio.place, "the surrogate by this ratio"), Label(node.span, "called here")),
    )
    edits = _detached(context.program, node, ratio.base)
    return with_suggestions(context, finding, edits, "detach them, or take those of sampling", most=1)


def _detached(program: Program, node: Node, place: Span) -> Iterator[Suggestion]:
    from hfdsl.check.repair import bodies  # late: most programs need none

    method, text = methods_of(program.role_class(node.role)).get(node.method), source_text(place)
    if method is not None and method.has(place) and text is not None and text[0] not in "(-":
        yield from bodies.replaced({place: f"{text}.detach()"})


def _to_a_reference(node: Node, place: Span, reason: str) -> Finding:
    return Finding(
        "HF366",
        f"'{node.label}' clips the ratio to a reference, so that the policy stops learning where it differs from the "
        f"reference: {reason}",
        Label(place, "surrogates by a ratio to a reference"),
        (Label(node.span, "called here"),),
        notes=("divide by the log-probs of sampling, and hold the policy to its reference by a KL",),
    )


def _mistaken(ratio: WeightedRatio) -> str:
    """Why a weight and a ratio are not together one to the policy of sampling; empty if they may be.

    The weight is that of the ratio's base over the policy of sampling.
    """
    base, above, below = ratio.base, ratio.above, ratio.below
    names = {path: path.rpartition(".")[2] for path in (base, above, below)}
    if base in (OWN, NOW) or any(REFERENCE.fullmatch(path) for path in names):
        return ""
    if base == below and OWN not in names and NOW not in names and above != below:
        return f"both divide by '{base}', and the weight is by '{above}' over '{below}'"
    is_sampled, is_proximal = SAMPLED.fullmatch(names[base]), PROXIMAL.fullmatch(names[base])
    is_certain = is_sampled or below == OWN or PROXIMAL.fullmatch(names[below])
    if base == above != below and is_certain and not is_proximal and not SAMPLED.fullmatch(names[below]):
        other = "the policy itself before the update" if below == OWN else f"'{below}'"
        return f"the ratio is to '{base}', of sampling, and the weight divides by {other}"
    return ""


def _weighted(node: Node, ratio: WeightedRatio, reason: str) -> Finding:
    return Finding(
        "HF366",
        f"'{node.label}' weighs its ratio so that the two together are no ratio to the log-probs of sampling: {reason}",
        Label(ratio.place, "the ratio times its weight"),
        (Label(node.span, "called here"),),
        notes=("a decoupled loss is now / proximal, clipped, times proximal / sampling",),
    )


def _is_to_a_reference(update: Collected) -> bool:
    """Whether all surrogates are by a ratio to a reference, and nothing corrects for that."""
    several = [term for loss in update.losses for term in terms_of(loss)]
    is_to_it = any(term.kind == "reference_surrogate" for term in several)
    return is_to_it and not any(term.kind == "surrogate" for term in several) and not update.constant_gaps


def _sampled_otherwise(program: Program, node: Node) -> str:
    """A reason why tokens were sampled with other log-probs than those of a reference; empty if there is none."""
    columns = [*_references(program, node)]
    roles, links = {role for _, role in columns}, role_links(program)
    may_follow = any(node.role in linked_roles(links, role) for role in roles)
    if may_follow or not all(CERTAIN.fullmatch(path) for path, _ in columns):
        return ""
    signature = signature_of(node)
    for port, kind in ports_of(signature).items() if signature is not None else ():
        fields = schema(kind.record).fields if isinstance(kind, RecordType) else {}
        for column, spec in fields.items():
            if is_float_column(spec) and LOG_PROB.fullmatch(column) and _is_of_sampling(column):
                return f"its tokens were sampled with '{port}.{column}'"
    is_own = {call.role for call in sampling_calls(program, node)} == {node.role}
    return f"its tokens are sampled by '{node.role}' itself" if is_own and roles else ""


def _is_of_sampling(column: str) -> bool:
    return not REFERENCE.fullmatch(column) and not OTHERS.fullmatch(column.replace("old", ""))


def _references(program: Program, node: Node) -> Iterator[tuple[str, str]]:
    """The columns of an update with log-probs of a reference, and the roles that gave them, if any."""
    for column in program.origins.columns(node.id):
        path = column.port if column.name is None else f"{column.port}.{column.name}"
        if REFERENCE.fullmatch(path) and is_float_column(column.spec):
            stored = stored_column(program.graph, column.ref)
            yield path, program.graph.nodes[stored.node].role if isinstance(stored, Ref) else ""
