"""Signs of losses: does a policy that minimizes a user's loss learn to raise its advantages?

Five ways to train in the wrong direction or without effect, none of which raises an error::

    loss = (ratio * advantages).mean()                            HF358: learns to lower its advantages
    loss = -torch.max(ratio * gains, clipped * gains).mean()      HF946: the greater one, so that nothing clips
    loss = -surrogate.mean() + 0.01 * entropy.mean()              HF946: punishes exploration
    loss = -surrogate.mean() - 0.04 * kl.mean()                   HF353: pays for leaving the reference
    loss = -surrogate.mean() + 0.04 * kl.detach().mean()          HF946: a KL without effect

A loss is what a method takes gradients of where a torch optimizer takes the step, or the surrogate of one of hfdsl's
losses. ``losses/terms.py`` says how its terms change with the log-probs of the policy. A term of both signs may be
intended, and where a role's numbers include a negative one, that may be the coefficient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import shares_with_another_role
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses import terms
from hfdsl.check.losses.collected import Collected, Reversal
from hfdsl.check.losses.names import GAIN
from hfdsl.check.losses.terms import PolicyValue, Quantity
from hfdsl.check.losses.updates import interpreted_surrogates, interpreted_update
from hfdsl.check.program import Program
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Operand
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.spans import Span


class SignMistake(NamedTuple):
    """A code, what an update does, the place, its label, advice, and the edit that may mend it."""

    code: str
    effect: str
    place: Span
    label: str
    advice: str
    edit: Literal["", "negate", "other sign", "other extreme"] = ""


def losses_have_their_signs(context: Context) -> Iterator[Finding]:
    """HF358, HF946 and HF353: what a policy minimizes falls with its advantages and entropy, and rises with its KL."""
    program, reported = context.program, set[Span]()
    for node in program.graph.calls if not program.graph.misuses else ():
        for mistake in (*_of_method(program, node), *_of_options(program, node)):
            # Of two roles that play against each other, one lowers the advantages that the other one raises.
            is_adversary = mistake.code == "HF358" and shares_with_another_role(program, node, _gains)
            if mistake.place not in reported and not is_adversary:
                reported.add(mistake.place)
                finding = Finding(
                    mistake.code,
                    f"'{node.label}' {mistake.effect}",
                    Label(mistake.place, mistake.label),
                    (Label(node.span, "called here"),),
                )
                yield with_suggestions(context, finding, _edits(program, node, mistake), mistake.advice, most=1)


def _edits(program: Program, node: Node, mistake: SignMistake) -> Iterator[Suggestion]:
    """The edits that may mend a mistake; a helper may have other callers, whose signs are right."""
    from hfdsl.check.repair import bodies  # late: most programs need none

    method = methods_of(program.role_class(node.role)).get(node.method)
    is_own = method is not None and method.has(mistake.place)
    if mistake.edit == "other extreme":
        yield from bodies.other_extreme(mistake.place)
    elif mistake.edit == "negate" and is_own:
        yield from bodies.negated(mistake.place)
    elif mistake.edit == "other sign" and is_own:
        yield from bodies.other_sign(mistake.place)


def _gains(program: Program, node: Node) -> set[Operand]:
    columns = [column for column in program.origins.columns(node.id) if is_float_column(column.spec)]
    named = [column.ref for column in columns if GAIN.fullmatch(column.name or column.port)]
    return {stored_column(program.graph, ref) for ref in named}


# -- methods of roles


def _of_method(program: Program, node: Node) -> Iterator[SignMistake]:
    """The mistakes in the losses of a user's method."""
    update = interpreted_update(program, node)
    if update is not None:
        yield from _mistakes(update.losses, update)


# -- losses of hfdsl


def _of_options(program: Program, node: Node) -> Iterator[SignMistake]:
    """The mistakes in the surrogates of the user's losses among the options of an update."""
    for surrogate in interpreted_surrogates(program, node):
        yield from _mistakes([surrogate.value], surrogate.collected)


# -- findings


def _mistakes(losses: Iterable[PolicyValue], found: Collected) -> Iterator[SignMistake]:
    """The mistakes in the losses of a role: those of its terms only where it raises its advantages."""
    sums = [terms.terms_of(loss) for loss in losses]
    surrogates = {term.sign: term for parts in sums for term in parts if terms.is_surrogate(term)}
    constant = [term for parts in sums for term in parts if term.kind == "surrogate" and term.constant]
    if constant and not surrogates:
        yield SignMistake(
            "HF946",
            "multiplies its advantages by log-probs or a ratio without a gradient: nothing is learned from them",
            constant[0].place,
            "the surrogate in the loss",
            "the log-probs above in the ratio are those with a gradient, or the ratio is a weight of such log-probs",
        )
    if surrogates.keys() == {1}:
        yield _ascent(surrogates[1])
    elif surrogates.keys() == {-1}:
        yield from map(_reversal, found.reversals)
        for parts in sums:
            if any(map(terms.is_surrogate, parts)):
                yield from _of_terms(parts)
                yield from _without_gradient(parts) if not found.values_of_others else ()


def _of_terms(parts: frozenset[Quantity]) -> Iterator[SignMistake]:
    """The terms of a loss that are certainly of the wrong sign."""
    signs = {(term.kind, term.sign) for term in parts}
    for term in parts:
        if term.constant:
            continue
        if (term.kind, term.sign) == ("entropy", 1) and ("entropy", -1) not in signs:
            yield SignMistake(
                "HF946",
                "adds the entropy to the loss that it minimizes: the policy becomes less random, and explores less",
                term.place,
                "the entropy in the loss",
                "subtract it for a bonus",
                edit="other sign",
            )
        if terms.is_comparison(term) and term.sign < 0 and (term.kind, 1) not in signs:
            yield SignMistake(
                "HF353",
                "subtracts a KL from the loss that it minimizes: the policy is rewarded for leaving the reference",
                term.place,
                "the KL in the loss",
                "add it to the loss, so that leaving the reference costs something",
                edit="other sign",
            )


def _without_gradient(parts: frozenset[Quantity]) -> Iterator[SignMistake]:
    """The terms of a loss that change it, and have no gradient, where no term of their kind has one."""
    for is_kind, name, effect in (
        (terms.is_comparison, "KL", "nothing holds the policy to its reference"),
        (terms.is_entropy, "entropy", "the policy does not become more random"),
    ):
        several = [term for term in parts if is_kind(term)]
        if several and all(term.constant for term in several):
            yield SignMistake(
                "HF946",
                f"has a term of its loss without a gradient, the {name}: {effect}",
                several[0].place,
                f"the {name} in the loss",
                "compute it from log-probs with their gradient, or leave it to the metrics",
            )


def _reversal(reversal: Reversal) -> SignMistake:
    taken, meant, function = ("greater", "smaller", "min") if reversal.sign > 0 else ("smaller", "greater", "max")
    return SignMistake(
        "HF946",
        f"takes the {taken} of the surrogates with a clip and without: the clip never holds the policy back",
        reversal.place,
        f"the {meant} one is meant",
        f"write torch.{function}: PPO takes the smaller gain, and so the greater loss",
        edit="other extreme",
    )


def _ascent(term: Quantity) -> SignMistake:
    effect, advice = "minimizes its advantages times log-probs, or a ratio of them", "an optimizer minimizes: negate it"
    if term.upside_down:
        effect, advice = "divides old probabilities by new ones", "the ratio is (log_probs - old_log_probs).exp()"
    return SignMistake(
        "HF358",
        f"{effect}: it learns to make tokens rarer that are better than expected",
        term.place,
        "the surrogate that it minimizes",
        advice,
        edit="" if term.upside_down else "negate",
    )
