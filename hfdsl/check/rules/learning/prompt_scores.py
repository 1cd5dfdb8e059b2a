"""Prompt scores: does anything that a policy learns from its samples by depend on these samples?

A worked example; only the second update learns::

    rollout = actor.generate(prompts)
    actor.update(rollout, group_advantages(rollout, reward.score(prompts), group=8))     # one number for all eight
    actor.update(rollout, group_advantages(rollout, reward.score(rollout), group=8))

A score depends on what its role reads. The ready-made functions compute numbers from numbers alone, but a user's own
function that reads tokens may score them itself, and a role that got the samples in another call may remember them. The
rule reports none of these, nor a score that stands beside another one which depends on the samples, as a weight by
difficulty does.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import Dependences, sampling_calls, update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.learning.mistaken_numbers import LOG_PROBS
from hfdsl.check.rules.learning.value_targets import number_makers
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column


def scores_are_of_responses(context: Context) -> Iterator[Finding]:
    """HF350: a policy that learns from its samples does not learn by what roles say of their prompts alone."""
    program, dependences, reported = context.program, Dependences(context.program), set[object]()
    if program.graph.misuses or not dependences.samplers:
        return
    saw_samples = {node.role for node in program.graph.calls if dependences.of_node(node.id)}
    for update in update_lines(program):
        samples = dependences.samplers & {call.id for call in sampling_calls(program, update)}
        makers = number_makers(program, _numbers(dependences, update, samples)) if samples else []
        of_prompts = all(isinstance(maker.op, RoleCall) and maker.role not in saw_samples for maker in makers)
        scorer = next((maker for maker in makers if any(maker.refs)), None) if of_prompts else None
        if scorer is None or scorer.span in reported:
            continue
        reported.add(scorer.span)
        sampled = program.graph.nodes[min(samples)]
        yield Finding(
            "HF350",
            f"'{update.label}' learns from responses of '{sampled.label}' with scores that '{scorer.label}' gives "
            "their prompts: no score depends on a response",
            Label(scorer.span, "no response reaches it"),
            (Label(sampled.span, "samples the responses"), Label(update.span, "learns from them")),
            notes=("score what the policy has sampled: give the responses to a role that scores",),
        )


def _numbers(dependences: Dependences, update: Node, samples: set[int]) -> list[RowColumn]:
    """The numbers that an update learns by: those that are no log-probs and came with no sample."""
    return [
        column
        for column in dependences.program.origins.columns(update.id)
        if is_float_column(column.spec)
        and not LOG_PROBS.fullmatch(column.name or column.port)
        and not dependences.is_sampled_with(column, dict.fromkeys(samples))
    ]
