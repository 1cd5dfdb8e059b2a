"""Ends: do responses end with the token that their model ends a text with?

A worked example, a model whose configuration has ``eos_token_id = 2``::

    ModelConfig(path="model", end_tokens=(7,))        # samples on after 2, which the model was trained to end with
    ModelConfig(path="model", end_tokens=(2, 7))

What follows the end of a text is noise, and the run scores it and learns from it. Roles state the token by
``misses_end``.

A policy learns to end a response only at its end token. A mask of responses that leaves it out, and labels that ignore
it, are read by ``bodies/end_tokens.py``::

    tokens != self.tokenizer.pad_token_id                   HF369, if that is the end token, too
    (tokens == self.tokenizer.eos_token_id).cumsum(-1) == 0       HF369
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from hfdsl.check.bodies.end_tokens import EndInterpretation, UnlearnedEnds, names_ends, padded_with_ends
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.padded_columns import MASKS, is_mask
from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, update_lines, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.rules.dataflow.unread_masks import LEARNED
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import Span
from hfdsl.protocols import role_facts
from hfdsl.types.batches import schema


def responses_end(context: Context) -> Iterator[Finding]:
    """HF909: the responses that an update learns from end with the end token of their model."""
    program, reported = context.program, set[str]()
    places = program.placements
    ends = {role: role_facts.misses_end.of(place) for role, place in places.items()}
    missed = {role: end for role, end in ends.items() if end is not None}
    for update in update_lines(program) if missed else ():
        for call in sampling_calls(program, update):
            if call.role not in missed or call.role in reported:
                continue
            reported.add(call.role)
            end, place = missed[call.role], places[call.role]
            yield Finding(
                "HF909",
                message(call.role, end, "its model"),
                Label(place.span, "configured here"),
                (Label(call.span, "samples"), Label(update.span, "learns from that")),
                notes=(f"add {end} to end_tokens, or leave out end_tokens to use the model's own",),
            )


def end_tokens_are_learned(context: Context) -> Iterator[Finding]:
    """HF369: masks of responses and labels of an update have the token that ends a response."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        ends = _unlearned(program, node, signature) if isinstance(node.op, RoleCall) else ()
        update = next(updates_after(program, node), None) if ends else None
        for column, place in ends if update is not None else ():
            if place in reported or not (column == "" or _is_mask_of_responses(signature, column)):
                continue
            reported.add(place)
            learns = [] if update is None or update is node else [Label(update.span, "learns from the result")]
            effect = f"returns a '{column}' that leaves out" if column else "ignores the labels of"
            yield Finding(
                "HF369",
                f"'{node.label}' {effect} the tokens that end responses: nothing learns to end one",
                Label(place, "without the end token"),
                (Label(node.span, "called here"), *learns),
                notes=("count the end tokens before each token: (ends.cumsum(-1) - ends) == 0; or take a mask",),
            )


def _unlearned(program: Program, node: Node, signature: Signature) -> Sequence[UnlearnedEnds]:
    """The masks and labels in a method of a user's role that leave out end tokens."""
    role = program.role_class(node.role)
    return () if signature.is_ready_made or not names_ends(role) else _unlearned_in(signature, role, node.method)


@lru_cache(maxsize=256)
def _unlearned_in(signature: Signature, role: type, method: str) -> Sequence[UnlearnedEnds]:
    methods = methods_of(role)
    if method not in methods:
        return ()
    body = EndInterpretation.of_method(signature, methods[method], methods, role)
    body.pads = padded_with_ends(role)
    return body.completed().unlearned


def _is_mask_of_responses(signature: Signature, column: str) -> bool:
    """Whether a column that a body returns is a mask of the tokens to learn, by its name."""
    kind = signature.returns
    spec = schema(kind.record).fields.get(column) if isinstance(kind, RecordType) else None
    return is_mask(spec) and (MASKS.fullmatch(column) or LEARNED.fullmatch(column)) is not None


def message(role: str, end: int, whose: str) -> str:
    """The message of the finding on a role that samples on after the end token of its model or tokenizer."""
    return (
        f"'{role}' continues after token {end}, with which {whose} ends a text: what follows is scored and trained "
        "on as part of the response"
    )
