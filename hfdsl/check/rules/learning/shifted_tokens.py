"""Shifted tokens: are log-probs of tokens those that a model gives before it has read them?

A worked example; only the last line is right::

    logits = self.model(ids).logits                                             after each token: of the next one
    logits.log_softmax(-1).gather(-1, ids[..., None])                           HF359: of tokens that it has read
    logits[:, -n:].log_softmax(-1).gather(-1, ids[:, -n:, None])                HF359: likewise
    logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])

and of a critic with a head, whose values of a response are baselines of its tokens::

    values = self.head(hidden).squeeze(-1)[:, -n:]                              HF359: of states that have the token
    values = self.head(hidden).squeeze(-1)[:, -n - 1 : -1]

Both sides have one length, so the rule compares where they end; ``bodies/model_tokens.py`` follows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hfdsl.check.bodies.model_tokens import AlignmentInterpretation, interpreted_tokens
from hfdsl.check.bodies.padded_columns import columns_with_width, record_columns
from hfdsl.check.bodies.token_positions import Outputs
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import Span

VALUES: Final = re.compile(
    r"(?!.*(after|bootstrap|later|next|nxt))(.*_)?(baselines?|critic|v|v_?preds?|vals?|values?)(_.*)?"
)
"""The names of values; other numbers of tokens, such as rewards and next values, may be of what came after them."""


def log_probs_are_of_the_next_tokens(context: Context) -> Iterator[Finding]:
    """HF359: log-probs of tokens are taken from the logits before these tokens."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        body = tokens_of(program, node, signature)
        for place, tokens in body.misaligned if body is not None else ():
            if place not in reported:
                reported.add(place)
                yield Finding(
                    "HF359",
                    f"'{node.label}' picks log-probs of '{tokens}' from the logits after these tokens, which predict "
                    "the tokens after them",
                    Label(place, "logits and tokens of the same positions"),
                    (Label(node.span, "called here"),),
                    notes=("the logits before a token predict it: logits[:, :-1] go with tokens[:, 1:]",),
                )


def values_are_of_states_before_tokens(context: Context) -> Iterator[Finding]:
    """HF359: values of tokens, over which advantages are taken, are those that a critic gives before these tokens."""
    program, reported = context.program, set[Span]()
    for node in value_calls(program) if not program.graph.misuses else ():
        signature = signature_of(node)
        body = None if signature is None else tokens_of(program, node, signature)
        update = None if body is None else next(updates_after(program, node), None)
        if signature is None or body is None or update is None:
            continue
        for name, outputs in _of_responses(signature, body):
            if outputs.tokens.end == 0 and outputs.place not in reported:
                reported.add(outputs.place)
                yield Finding(
                    "HF359",
                    f"'{node.label}' returns for '{name}' of each token what its model gives after this token: a "
                    "baseline that knows the action",
                    Label(outputs.place, "after each token of the response"),
                    (Label(node.span, "called here"), Label(update.span, "learns from the result")),
                    notes=("take the values before each token: values[:, -n - 1 : -1]",),
                )


def tokens_of(program: Program, node: Node, signature: Signature) -> AlignmentInterpretation | None:
    """The interpretation of a body in tokens, and in what models give for them."""
    role = program.role_class(node.role) if isinstance(node.op, RoleCall) else None
    return interpreted_tokens(signature, role, node.method or "")


def _of_responses(signature: Signature, body: AlignmentInterpretation) -> Iterator[tuple[str, Outputs]]:
    """The columns of responses that a body returns, as what a model gives for prompts with responses."""
    kind, taken = signature.returns, dict(columns_with_width(signature))
    for name, spec in record_columns(kind) if isinstance(kind, RecordType) else ():
        outputs = body.columns.get(name)
        ids = taken.get(outputs.tokens.column) if isinstance(outputs, Outputs) else None
        is_joined = ids is not None and ids.dims[1] != spec.dims[1] and {*spec.dims[1].atoms} < {*ids.dims[1].atoms}
        if isinstance(outputs, Outputs) and outputs.cut == "response" and is_joined and VALUES.fullmatch(name):
            yield name, outputs
