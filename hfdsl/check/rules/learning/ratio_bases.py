"""Bases of ratios: does a policy's update divide by the probabilities that its tokens were sampled with?

A worked example, of an update on tokens that the policy has sampled, with their ``log_probs``::

    ratio = (self.log_probs(ids) - experience.ref_log_probs.tensor).exp()
    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()       HF366: clipped around a reference
    old, now = self.log_probs(ids), self.log_probs(ids)
    loss = -((now - old).exp() * gain).mean()                                  HF366: 1, whose gradient is 0
    loss = -torch.min(now.exp() * gain, now.exp().clamp(0.8, 1.2) * gain)      HF366: probabilities, and no ratio
    for _ in range(4):
        now = self.log_probs(ids)
        self.step(-((now - now.detach()).exp() * gain).mean())                 HF366: 1 in every step

    weight = (experience.rollout_log_probs.tensor - experience.log_probs.tensor).exp()
    ratio = (now - experience.log_probs.tensor).exp()
    loss = -(weight * ratio * gain).mean()                                     HF366: the weight is upside down

A ratio to a reference is near 1 only if the policy has learned nothing. The rule reports it where the record has the
log-probs of sampling, or where the role has sampled the tokens itself: those of a data set may be the reference's. A
weight from the one to the other makes the ratio right, too, as does a reference that follows the policy. A ratio of
log-probs to themselves has a gradient only if one of them has none, and is right for a single step alone. Probabilities
may be meant, unless they are called a ratio or are clipped above 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from hfdsl.check.bodies.interpretation import ports_of
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.collected import Collected, OwnRatio, WeightedRatio
from hfdsl.check.losses.names import LOG_PROB, OTHERS, PROXIMAL, REFERENCE, SAMPLED
from hfdsl.check.losses.terms import ALONE, NOW, OWN, is_surrogate, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.check.rules.learning.clip_ranges import known_numbers
from hfdsl.check.rules.learning.ratios import Makers
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
        findings += [_of_probabilities(node, place) for place in _probabilities(update)]
        findings += _always_one(context, node, update)
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


def _probabilities(update: Collected) -> Sequence[Span]:
    """The place of the first probabilities that are taken for ratios, if a loss has a surrogate by any."""
    surrogates = [term for loss in update.losses for term in terms_of(loss) if is_surrogate(term)]
    is_learned = any(term.above == ALONE and not term.shifted for term in surrogates)
    return sorted(update.probabilities, key=_lines)[:1] if is_learned and not update.by_name else ()


def _lines(place: Span) -> tuple[str, int, int]:
    return place.file, place.line, place.column


def _of_probabilities(node: Node, place: Span) -> Finding:
    return Finding(
        "HF366",
        f"'{node.label}' takes the probabilities of tokens for a ratio: nothing divides them by those that the tokens "
        "were sampled with",
        Label(place, "at most 1, and below it from the start"),
        (Label(node.span, "called here"),),
        notes=("the ratio is (log_probs - old_log_probs).exp()",),
    )


def _always_one(context: Context, node: Node, update: Collected) -> Iterator[Finding]:
    """The ratios of log-probs to themselves by which a policy certainly learns several times from the same rows."""
    learns = any(is_surrogate(term) for loss in update.losses for term in terms_of(loss))
    ratios = update.ratios_of_one if learns else []
    names = {name for ratio in ratios if ratio.times is not None for name, _ in ratio.times.factors}
    values = known_numbers(context.program, node, names) if ratios else {}
    earlier = _earlier(context, node) if ratios else None
    for place, times in ratios:
        count = 1.0 if times is None else times.given(values).offset * (not times.given(values).factors)
        if count < 2 and earlier is None:
            continue
        learned = f"learns {count:g} times from the same rows" if count >= 2 else "learns from the same rows again"
        others = [Label(earlier.span, "learns first")] if earlier is not None and earlier.span != node.span else []
        yield Finding(
            "HF366",
            f"'{node.label}' {learned}, by a ratio of log-probs to themselves: it is always 1, so that nothing "
            "corrects for the steps before, and no clip acts",
            Label(place, "1 in every step"),
            (Label(node.span, "called here"), *others),
            notes=("divide by the log-probs of sampling, or by some that are computed before the first step",),
        )


def _earlier(context: Context, node: Node) -> Node | None:
    """An earlier call by which the same role learns from the same rows."""
    makers = Makers(context)
    updates = (update for update, _ in makers.updates if update.role == node.role and update.id < node.id)
    return next((update for update in updates if makers.reads_rows_of(node, update)), None)


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
