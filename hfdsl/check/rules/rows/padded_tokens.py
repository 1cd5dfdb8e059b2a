"""Padded tokens: does a body take the padding of responses for tokens?

A worked example, a function on the ready-made records, whose responses are padded on the right::

    rewards = rollout.log_probs.tensor - ref.ref_log_probs.tensor      tokens, and padding
    rewards[:, -1] += scores.score.tensor                              the last column: padding in shorter responses
    gains = (rewards - rewards.mean()) / rewards.std()                 padding counts in both
    whitened(gains, torch.ones_like(gains))                            and here: a mask of ones

Nothing fails, since padding has numbers, too. The dim ``hfdsl.rl.batches.R`` says that there is padding, and a mask
says where. For a user's dim a mask of responses says that there is; the rule then reports only a score in the last
column, and a mean or spread that counts masked padding as zeros.

The rule follows tensors of tokens, also into mini-batches (``token_interpretation.py``). It gives up where a mask may
have played a part: a sum of masked tokens, a mean of those that a mask picks and a number for the responses that fill
the last column are intended. So is a mean or a spread alone: the one may be a sum over a fixed length, the other a
metric.

The rule follows columns that users' bodies compute only if each token has its own number: a score that is repeated for
all tokens has the same mean with padding. If a role samples with a mask of ones, its responses have no padding.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.padded_columns import (
    columns_with_width,
    padded_widths,
    samples_full_responses,
)
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.bodies.token_interpretation import TokenInterpretation
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.rules.rows.mixed_rows import may_get_a_part
from hfdsl.check.sources import Function
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref, RoleCall
from hfdsl.graph.signatures import Signature

OF_EACH_TOKEN = frozenset({"engine_log_probs", "log_probs", "ref_log_probs", "values"})
"""The columns of ready-made records that never repeat one number for all tokens of a response, in any role."""


def padding_is_no_token(context: Context) -> Iterator[Finding]:
    """HF355: a body before an update leaves padding out of what it computes of tokens."""
    seen, graph = set[object](), context.program.graph
    for node, signature in graph.bodies if not graph.misuses else ():
        body = signature.body
        ready, masked = padded_widths(columns_with_width(signature))
        if body in seen or signature.is_ready_made or is_decorated(body) or not ready | masked:
            continue
        seen.add(body)
        definition, update = definition_of(body), next(updates_after(context.program, node), None)
        if definition is None or update is None:
            continue
        repeated = _repeated_columns(context.program, node)
        parts = may_get_a_part(node, signature)
        of_ready, of_masked = (
            _body(context.program, node, signature, definition)
            .know(signature, repeated, padded, parts=parts)
            .completed()
            .mistakes
            for padded in (ready, masked)
        )
        mistake = next(iter([*of_ready, *(mistake for mistake in of_masked if mistake.of_own)]), None)
        if mistake is not None:
            if any(samples_full_responses(sampler) for _, sampler in graph.bodies):
                return
            learns = [] if update is node else [Label(update.span, "learns from the result")]
            yield Finding(
                "HF355",
                f"'{node.label}' {mistake.effect}",
                Label(mistake.place, mistake.label),
                (Label(node.span, "called here"), *learns),
                notes=(mistake.advice,),
            )


def _body(program: Program, node: Node, signature: Signature, definition: Function) -> TokenInterpretation:
    """The interpretation of a function, or of a method with those that it calls."""
    methods = methods_of(program.role_class(node.role)) if isinstance(node.op, RoleCall) else {}
    if node.method not in methods:
        return TokenInterpretation.of(signature, definition)
    return TokenInterpretation.of_method(signature, methods[node.method], methods, program.role_class(node.role))


def _repeated_columns(program: Program, node: Node) -> frozenset[str]:
    """The names of columns that a call takes from users' bodies, which may repeat one number in each row."""
    repeated = set[str]()
    for column in program.origins.columns(node.id):
        stored = stored_column(program.graph, column.ref)
        maker = program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
        signature = None if maker is None else signature_of(maker)
        if signature is not None and not signature.is_ready_made and column.name not in OF_EACH_TOKEN:
            repeated.add(column.name or column.port)
    return frozenset(repeated)
