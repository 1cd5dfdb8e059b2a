"""Masks of losses: does a policy's update learn sampled tokens alone, and divide its terms by one count?

A worked example, an update on prompts and responses, one behind the other::

    mask = experience.attention_mask.tensor[:, 1:]                of prompts, too
    loss = -(ratio * gain * mask).sum() / mask.sum()              HF364: learns to write prompts
    mask = experience.response_mask.tensor
    kl = (gap.exp() - gap - 1) * mask
    loss = -(ratio * gain * mask).sum() / mask.sum() + kl.mean()  HF355: a KL over tokens and padding
    loss = -(ratio * gain * (1 - mask)).mean()                    HF364: learns everything else
    ratio = ((now - old) * mask).mean(-1).exp()                   HF355: closer to 1 the more padding there is
    ratio = (now - old).mean(-1).exp()                            HF355: of padding, too, if the loss has a mask

A mean of masked numbers alone is the sum over a constant, as in Dr. GRPO: columns have one width. As in the rule on
padding, advantages of single tokens may be 0 where a mask is not, but an entropy and a KL are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.padded_columns import MASKS, columns_with_width, is_mask
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.collected import Collected
from hfdsl.check.losses.masks import COMPLEMENT
from hfdsl.check.losses.terms import BEGINNING, PARTS, SELECTION, Quantity, is_everywhere, is_surrogate, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.dataflow.unread_masks import LEARNED
from hfdsl.graph.program import Node
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span
from hfdsl.types.columns import ColumnSpec

OF_ALL: Final = re.compile(r"(.*_)?(attention|attn)_mask")
"""The names of masks of whole sequences."""

MAYBE_OF_ALL: Final = re.compile(r"(.*_)?(input|sequence)_mask|mask")
"""The names of masks that are of whole sequences beside a mask of responses."""

TOKENS: Final = re.compile(r"(.*_)?(ids|sequences?|tokens)")
"""The names of tokens that a model reads."""

OF_RESPONSES: Final = re.compile(
    r"(?!.*(input|prompt|query))(.*_)?(actions?|answers?|completions?|gen|generated|output|responses?)_"
)
"""The names of tokens of responses, up to their last part."""


def losses_are_of_responses(context: Context) -> Iterator[Finding]:
    """HF364 and HF355: an update learns no prompts, and divides its terms by the same count of tokens."""
    program, reported = context.program, set[Span]()
    calls = reversed(program.graph.calls if not program.graph.misuses else ())
    for node in {(node.role, node.method): node for node in calls}.values():
        signature = signature_of(node)
        body = interpreted_update(program, node)
        if signature is None or body is None or body.by_name:
            continue
        mistakes = (_of_prompts(context, node, signature, body), _of_the_rest(node, body), _of_other_counts(node, body))
        for finding in chain.from_iterable(mistakes):
            if finding.primary.span not in reported:
                reported.add(finding.primary.span)
                yield finding


def _sums(body: Collected) -> Iterator[frozenset[Quantity]]:
    """The terms of losses with a surrogate."""
    for loss in body.losses:
        parts = terms_of(loss)
        if any(map(is_surrogate, parts)):
            yield parts


# -- prompts


def _of_prompts(context: Context, node: Node, signature: Signature, body: Collected) -> Iterator[Finding]:
    """The terms of a loss that are of prompts, too."""
    others = dict(_masks_with_prompts(signature))
    for parts in _sums(body) if others else ():
        for term in parts:
            masks = {path.rpartition(".")[2] for path in term.masks}
            if is_everywhere(term) and masks and masks <= others.keys():
                mask = min(masks)
                finding = Finding(
                    "HF364",
                    f"'{node.label}' trains on prompts: '{mask}', by which its loss is masked, is of the tokens of "
                    "prompts, too",
                    Label(term.place, "at tokens of prompts and responses"),
                    (Label(node.span, "called here"),),
                )
                edits = _edits(context.program, node, mask, others[mask])
                yield with_suggestions(context, finding, edits, _advice(others[mask]), most=1)
                return


class ResponseMasks(NamedTuple):
    """The masks of responses in what an update takes, and those of them that have the dims of another mask."""

    masks: Sequence[str]
    beside: Sequence[str]


def _masks_with_prompts(signature: Signature) -> Iterator[tuple[str, ResponseMasks]]:
    """The names of masks, and of tokens, that are of prompts, too, each with the masks of responses."""
    columns = [*columns_with_width(signature)]
    for path, spec in columns:
        name = path.rpartition(".")[2]
        responses = [other for other, other_spec in columns if is_mask(other_spec) and _is_of_responses(other)]
        is_certain = OF_ALL.fullmatch(name) if is_mask(spec) else _may_have_prompts(name, spec)
        is_likely = is_mask(spec) and MAYBE_OF_ALL.fullmatch(name) and responses
        beside = [other for other in responses if dict(columns)[other].dims == spec.dims]
        if (is_certain or is_likely) and (_is_joined(spec) or beside):
            yield name, ResponseMasks(responses, beside)


def _may_have_prompts(name: str, spec: ColumnSpec) -> bool:
    """Whether a column may be of the tokens that a model reads, prompts among them."""
    return is_token_column(spec) and TOKENS.fullmatch(name) is not None and not OF_RESPONSES.match(name)


def _advice(others: ResponseMasks) -> str:
    """The mask to take: one of all these tokens, or one of the responses alone."""
    if others.beside:
        advice = f"take {others.beside[0]}.tensor instead"
    elif others.masks:
        advice = f"cut it to the responses, and take {others.masks[0]}.tensor"
    else:
        advice = "take a mask of the responses"
    return f"{advice}: prompts are given, and no advantage is theirs"


def _edits(program: Program, node: Node, mask: str, others: ResponseMasks) -> Iterator[Suggestion]:
    """The only other mask of these tokens in the place of a mask."""
    from hfdsl.check.repair import bodies  # late: most programs need none

    method = methods_of(program.role_class(node.role)).get(node.method)
    if method is not None and len(others.beside) == 1:
        yield from bodies.other_column(method, mask, others.beside[0].rpartition(".")[2])


def _is_of_responses(path: str) -> bool:
    name = path.rpartition(".")[2]
    return (MASKS.fullmatch(name) or LEARNED.fullmatch(name)) is not None


def _is_joined(spec: ColumnSpec) -> bool:
    """Whether the tokens of a column are those of several dims, such as prompts and responses."""
    return len({atom for atom in spec.dims[1].atoms if isinstance(atom, type)}) > 1


def _of_the_rest(node: Node, body: Collected) -> Iterator[Finding]:
    """The surrogates of a loss that learns the tokens which a mask of responses leaves out, and no others."""
    for parts in _sums(body):
        surrogates = [term for term in parts if is_surrogate(term)]
        masks = frozenset[str]().union(*(term.masks for term in surrogates)) - {BEGINNING}
        left_out = {mask.removesuffix(COMPLEMENT) for mask in masks if mask.endswith(COMPLEMENT)}
        if masks and len(left_out) == len(masks) and any(map(_is_of_responses, left_out)):
            mask = min(filter(_is_of_responses, left_out)).rpartition(".")[2]
            yield Finding(
                "HF364",
                f"'{node.label}' trains on the tokens that '{mask}' leaves out, such as prompts and padding, and on "
                "none that the policy sampled",
                Label(surrogates[0].place, "at the other tokens"),
                (Label(node.span, "called here"),),
                notes=(f"multiply by {mask} itself: it is 1 at the tokens to learn",),
            )


# -- counts


def _of_other_counts(node: Node, body: Collected) -> Iterator[Finding]:
    """The terms of a loss that are divided by tokens and padding where others are divided by tokens, and ratios."""
    surrogates = [term for parts in _sums(body) for term in parts if is_surrogate(term)]
    are_masked = any(term.masks - {*PARTS, SELECTION} for term in surrogates)
    ratios = sorted({term.padded for term in surrogates if term.padded is not None}, key=lambda place: place.line)
    for place in ratios if are_masked else ():
        yield Finding(
            "HF355",
            f"'{node.label}' takes the exponential of a mean over tokens and padding: the ratio of a shorter response "
            "is closer to 1",
            Label(place, "a mean in which padding counts"),
            (Label(node.span, "called here"),),
            notes=("divide the sum over each response by that of its mask",),
        )
    for parts in _sums(body):
        counted = [term for term in parts if term.divisor and not term.constant]
        others = [term for term in counted if term.divisor == "tokens"]
        padded = [term for term in counted if term.divisor != "tokens"]
        if others and padded:
            yield Finding(
                "HF355",
                f"'{node.label}' divides {_name(padded[0])} by tokens and padding, and {_name(others[0])} by tokens: "
                "the more padding there is, the less the one counts",
                Label(padded[0].place, "a mean in which padding counts"),
                (Label(others[0].place, "over tokens alone"), Label(node.span, "called here")),
                notes=("divide the masked sum by that of the mask in both",),
            )


def _name(term: Quantity) -> str:
    """A term in words."""
    return {"entropy": "its entropy", "surrogate": "its surrogate"}.get(term.kind, "its KL")
