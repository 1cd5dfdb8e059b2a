"""Padded losses: does a policy's update leave the padding of responses out of its loss?

A worked example, an update whose record has a ``response_mask``::

    now = self.model(ids, attention_mask=mask).log_softmax(-1).gather(-1, ids)      of tokens, and of padding
    gain = experience.advantage.tensor[:, None]                                     one number for all of a row
    self.metrics["log_prob"] = (now.detach() * mask).sum() / mask.sum()
    loss = -(now * gain).mean()                   HF355: no mask reaches it; it learns to predict padding, or not to
    loss = -(now * gain * mask).sum() / mask.sum()

Advantages of single tokens may be 0 on padding, but an entropy and a KL are not. The rule covers log-probs that an
update picks from a distribution by all tokens of a column, padding among them. If it picks by some of them, or by
unknown ones, it may have left padding out before.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.bodies.padded_columns import MASKS, columns_with_width, is_mask, samples_full_responses
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.terms import Quantity, is_everywhere, is_surrogate, may_leave_padding_out, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.graph.program import Node


def losses_leave_padding_out(context: Context) -> Iterator[Finding]:
    """HF355: an update whose record says what is padding does not train on it."""
    program, reported = context.program, set[object]()
    for node in program.graph.calls if not program.graph.misuses else ():
        mask = _mask(node)
        for term in _padded_terms(program, node) if mask is not None else ():
            if term.place in reported:
                continue
            if any(samples_full_responses(signature) for _, signature in program.graph.bodies):
                return
            reported.add(term.place)
            yield Finding(
                "HF355",
                f"'{node.label}' has padding in its loss: '{mask}' has no part in it",
                Label(term.place, "at tokens and padding"),
                (Label(node.span, "called here"),),
                notes=(f"multiply it by {mask}.tensor, and divide the sum by that of the mask",),
            )


def _mask(node: Node) -> str | None:
    """The mask of responses that a record of a call has, as the body names it."""
    signature = signature_of(node)
    columns = columns_with_width(signature) if signature is not None else ()
    return next((path for path, spec in columns if is_mask(spec) and MASKS.fullmatch(path.rpartition(".")[2])), None)


def _padded_terms(program: Program, node: Node) -> Iterator[Quantity]:
    """The terms of a loss that are not 0 on padding."""
    signature = signature_of(node)
    if not node.method or signature is None or signature.is_ready_made:
        return
    update = interpreted_update(program, node)
    choices = update.choices if update is not None and not update.by_name else []
    has_padding = choices and not any(may_leave_padding_out(choice.masks) for choice in choices)
    for loss in update.losses if update is not None and has_padding else ():
        terms = terms_of(loss)
        for term in terms if any(map(is_surrogate, terms)) else ():
            if is_everywhere(term) and not may_leave_padding_out(term.masks):
                yield term
                break
