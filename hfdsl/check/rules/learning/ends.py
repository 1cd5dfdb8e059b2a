"""Ends: do responses end with the token that their model ends a text with?

A worked example, a model whose configuration has ``eos_token_id = 2``::

    ModelConfig(path="model", end_tokens=(7,))        # samples on after 2, which the model was trained to end with
    ModelConfig(path="model", end_tokens=(2, 7))

What follows the end of a text is noise, and the run scores it and learns from it. Roles state the token by
``misses_end``.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.protocols import role_facts


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


def message(role: str, end: int, whose: str) -> str:
    """The message of the finding on a role that samples on after the end token of its model or tokenizer."""
    return (
        f"'{role}' continues after token {end}, with which {whose} ends a text: what follows is scored and trained "
        "on as part of the response"
    )
