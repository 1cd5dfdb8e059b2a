"""Imitation: has anything chosen the responses that a policy learns to repeat?

A worked example; only the last two updates learn from intended responses::

    actor.imitate(pairs)                               # the worse response of each pair, too
    rollout = actor.generate(prompts)
    actor.imitate(rollout)                             # all of its own samples: the gradient is 0 on average
    actor.imitate(hf.filter(rollout, passed(scores).keep))
    actor.imitate(demonstrations)

Only the ready-made method certainly learns from all rows that it gets: a user's own may weight them. Rows that a filter
or ``hf.take`` selects are chosen, and so are samples of the likeliest tokens or of a part of the distribution.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.check.rules.learning.sampling import chooses_tokens
from hfdsl.check.sources import argument_span
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.row_steps import PartStep, RepeatStep, SampleStep
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.graph.values import RecordValue
from hfdsl.types.batches import schema

PREFERENCE = "preference"
"""The column that says which response of a pair is better."""


def imitated_responses_are_chosen(context: Context) -> Iterator[Finding]:
    """HF346: a policy imitates neither the worse responses of pairs nor all of its own."""
    program, reported = context.program, set[object]()
    for update in training_calls(program) if not program.graph.misuses else ():
        tokens = _all_imitated(program, update)
        if tokens is None or update.span in reported:
            continue
        token_source = program.inference.values[tokens.node]
        are_pairs = isinstance(token_source, RecordValue) and PREFERENCE in schema(token_source.type.record).fields
        sampled = _own_samples(program, update)
        if not are_pairs and not sampled:
            continue
        reported.add(update.span)
        which = "both responses of each pair, the worse one too" if are_pairs else "every response that it sampled"
        advice = (
            "keep the better ones with hf.filter, or learn the preference with prefer"
            if are_pairs
            else "keep the good ones with hf.filter: over all samples, the expected gradient is 0"
        )
        yield Finding(
            "HF346",
            f"'{update.label}' imitates {which}: nothing has chosen what '{update.role}' learns",
            Label(argument_span(update.span, signature_of(update), tokens.port), "all rows are imitated"),
            tuple(Label(call.span, "samples them") for call in sampled) if not are_pairs else (),
            notes=(advice,),
        )


def _all_imitated(program: Program, update: Node) -> RowColumn | None:
    """The tokens of an update by tokens alone, whose rows are all that there are."""
    signature, columns = signature_of(update), program.origins.columns(update.id)
    tokens = next((column for column in columns if is_token_column(column.spec) and column.inner), None)
    if signature is None or not signature.is_ready_made or any(is_float_column(column.spec) for column in columns):
        return None
    origin = None if tokens is None else program.origins.of(tokens)
    whole = origin is not None and all(isinstance(step, (PartStep, RepeatStep, SampleStep)) for step in origin.steps)
    return tokens if whole else None


def _own_samples(program: Program, update: Node) -> list[Node]:
    """The calls that sampled an update's tokens from the policy itself, if all of them did so."""
    links, calls = role_links(program), sampling_calls(program, update)
    own = [
        call
        for call in calls
        if isinstance(call.op, RoleCall)
        and update.role in linked_roles(links, call.role)
        and not chooses_tokens(program, call)
    ]
    return own if len(own) == len(calls) else []
