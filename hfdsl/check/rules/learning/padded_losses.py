"""Padded losses: does a policy's update leave the padding of responses out of its loss?

A worked example, an update whose record has a ``response_mask``::

    now = self.log_probs(experience)                              of tokens, and of padding
    gain = experience.advantage.tensor[:, None]                   one number for all of a row
    loss = -(now * gain).mean()                                   HF355: learns to predict padding, or not to
    loss = -(now * gain * mask).sum() / mask.sum()

Advantages of single tokens may be 0 on padding, but an entropy and a KL are not. The rule speaks of updates in which
nothing is named after a mask, a length or padding, and of log-probs that they compute from logits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.terms import Quantity, is_everywhere, is_surrogate, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.check.rules.rows.padded_tokens import MASKS, columns_with_width, is_mask, samples_full_responses
from hfdsl.graph.program import Node

KNOWS_PADDING: Final = re.compile(r".*(cross_entropy|eos|ignore|keep|length|lens|mask|nll|pad|real|valid|weight).*")
"""Names in code that may have padding left out."""


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
                f"'{node.label}' has padding in its loss: it does not read '{mask}'",
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
    if not node.method or signature is None or signature.is_ready_made or _knows_padding(program, node):
        return
    update = interpreted_update(program, node)
    if update is None or update.by_name:
        return
    for loss in update.losses:
        terms = terms_of(loss)
        for term in terms if any(map(is_surrogate, terms)) else ():
            if is_everywhere(term):
                yield term
                break


def _knows_padding(program: Program, node: Node) -> bool:
    """Whether something in the code of an update is named after what may leave padding out."""
    functions = code_of(program.role_class(node.role)).reached(node.method)
    return any(KNOWS_PADDING.fullmatch(name) for function in functions for name in function.names)
