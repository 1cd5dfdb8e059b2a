"""Numbers of a configuration that have to agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.check.findings import Finding
from hfdsl.check.program import Program
from hfdsl.check.rules.learning.dropout import WITHOUT, dropped_ratios
from hfdsl.check.rules.learning.lengths import IDLE_PENALTY, SMALL_UPDATES, idle_penalties, other_divisors
from hfdsl.check.rules.learning.precision import COST, KL_BIAS, correction, less_precise_references
from hfdsl.check.rules.learning.references import REFERENCE_COLUMN, updates_without_reference
from hfdsl.check.rules.learning.references import message as without_reference
from hfdsl.check.rules.learning.sampling import (
    GREEDY,
    WHOLE_DISTRIBUTION,
    equal_responses,
    other_sizes,
    truncated_responses,
)
from hfdsl.check.rules.learning.temperatures import different_temperatures
from hfdsl.check.rules.learning.unusual import TEMPERATURE, low_temperature, low_temperatures
from hfdsl.graph.program import Constant, Graph, Pack
from hfdsl.rl.batches import R
from hfdsl.rl.training.feeds import SIZES, missing_size, responses_of
from hfdsl.rl.training.preflight.dataflows import is_trained, learners, size_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import generating
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.typed import joined
from hfdsl.rl.workers.config import ActorConfig, ReferenceConfig, SamplerConfig, computes
from hfdsl.types.dims import Dim

WHOLE = {"top_p": 1.0, "top_k": 0}
"""The values of a generation that samples from the whole distribution."""


def _with_widths(subject: Subject) -> Iterator[tuple[str, Program, str, dict[type[Dim], int]]]:
    """The programs of a run by table, each with the field of the longest response and its size, if that is known."""
    for table, program in subject.programs.items():
        field, width = size_of(subject, table, "R")
        yield table, program, field, {R: width} if width is not None else {}


def lengths_agree(subject: Subject) -> Iterator[Finding]:
    """The limit on a response's tokens is the width of the columns that hold them."""
    for _, program, field, sizes in _with_widths(subject):
        for mismatch in other_sizes(program, sizes):
            limit = f"{mismatch.role}.generation.max_tokens"
            if subject.has(limit):
                yield subject.finding(
                    "HF711",
                    mismatch.message,
                    limit,
                    related={field: f"R = {mismatch.size}"},
                    changes=(SetField(limit, mismatch.size), SetField(field, mismatch.configured)),
                    advice=f"set max_tokens to {mismatch.size}, or R to {mismatch.configured}",
                )


def temperatures_agree(subject: Subject) -> Iterator[Finding]:
    """Roles whose log-probs are compared divide logits by one temperature."""
    for pair in (pair for program in subject.programs.values() for pair in different_temperatures(program)):
        learned = f"{pair.learner}.generation.temperature"
        fields = (f"{pair.role}.generation.temperature", f"{pair.role}.temperature")
        for field in filter(subject.has, fields):
            yield subject.finding(
                "HF712",
                pair.message,
                field,
                related={learned: f"{pair.learned:g} here"},
                changes=(SetField(field, pair.learned),),
                advice=f"set {field} to {pair.learned:g}",
            )


def temperatures_leave_a_choice(subject: Subject) -> Iterator[Finding]:
    """The temperature of a policy that learns by ratios is not close to 0."""
    for role, _, temperature in (low for program in subject.programs.values() for low in low_temperatures(program)):
        field = f"{role}.generation.temperature"
        if subject.has(field):
            yield subject.finding("HF947", low_temperature(role, temperature), field, notes=(TEMPERATURE,))


def sizes_are_given(subject: Subject) -> Iterator[Finding]:
    """The dims of the batches that the run feeds have sizes."""
    for table, graph in subject.graphs.items():
        responses = responses_of(graph)
        if table == "update" or responses is None:
            continue
        for dim in SIZES[responses]:
            if size_of(subject, table, dim)[1] is None:
                yield subject.finding("HF901", missing_size(dim), "dims")


def penalties_can_act(subject: Subject) -> Iterator[Finding]:
    """Some responses are long enough for the penalty on length."""
    for table, program, field, sizes in _with_widths(subject):
        for idle in idle_penalties(program, sizes):
            longest, related = joined(table, "options.longest"), {field: f"R = {idle.width}"}
            yield subject.finding("HF718", idle.message, longest, related=related, notes=(IDLE_PENALTY,))


def responses_of_a_prompt_differ(subject: Subject) -> Iterator[Finding]:
    """A role whose responses to a prompt are compared samples from more than one token."""
    for equal in (equal for program in subject.programs.values() for equal in equal_responses(program)):
        field = f"{equal.role}.generation.top_k"
        if equal.why != GREEDY and subject.has(field):
            yield subject.finding("HF725", equal.message, field, changes=(SetField(field, 0),))


def rollouts_are_of_the_whole_distribution(subject: Subject) -> Iterator[Finding]:
    """A policy that learns by log-probs of the whole distribution samples from all of it."""
    for truncated in (response for program in subject.programs.values() for response in truncated_responses(program)):
        config, table = getattr(subject.config, truncated.role, None), f"{truncated.role}.generation"
        if truncated.how == GREEDY or not isinstance(config, (ActorConfig, SamplerConfig)) or not subject.has(table):
            continue
        all_changes = [
            SetField(f"{table}.{name}", value)
            for name, value in WHOLE.items()
            if getattr(config.generation, name) != value
        ]
        yield subject.finding(
            "HF727",
            truncated.message,
            all_changes[0].field,
            notes=(WHOLE_DISTRIBUTION,),
            changes=all_changes if len(all_changes) == 1 else (),
            advice="set top_p to 1 and top_k to 0",
        )


def divisors_are_lengths(subject: Subject) -> Iterator[Finding]:
    """The divisor of the sum over a response is the longest length, or 1."""
    for table, program, field, sizes in _with_widths(subject):
        for divisor in other_divisors(program, sizes):
            constant = joined(table, "options.loss.constant")
            yield subject.finding(
                "HF721",
                divisor.message,
                constant,
                related={field: f"R = {divisor.width}"},
                notes=(SMALL_UPDATES,),
                changes=(SetField(constant, "none"),) if _has_loss(subject, table) else (),
                advice=f"set the constant to {divisor.width}",
            )


def coefficients_have_a_reference(subject: Subject) -> Iterator[Finding]:
    """A loss with a KL term reads the log-probs of a reference."""
    for table, graph in subject.graphs.items():
        fed = table == "update" and _lacks_reference(subject.graphs[""])
        for update in updates_without_reference(graph, of_inputs=fed):
            field, has_loss = joined(table, "options.loss.kl"), _has_loss(subject, table)
            yield subject.finding(
                "HF713",
                without_reference(update, graph),
                field if has_loss else joined(table, "algorithm"),
                notes=("algorithms with a reference, such as grpo, have the term",),
                changes=(SetField(field, 0.0),) if has_loss else (),
                advice="set kl to 0",
            )


def _lacks_reference(sampling: Graph) -> bool:
    """Whether the experience that a dataflow makes for the updates of another one certainly has no reference."""
    packs = [dict(node.arguments) for node in sampling.nodes if isinstance(node.op, Pack)]
    columns = [pack[REFERENCE_COLUMN] for pack in packs if REFERENCE_COLUMN in pack]
    return bool(columns) and all(column == Constant(None) for column in columns)


def dtypes_agree(subject: Subject) -> Iterator[Finding]:
    """Roles sample responses in the dtype in which the policy learns from them."""
    for learner, actor in learners(subject):
        learns = computes(actor)
        for role in generating(subject.graphs[""]):
            config = getattr(subject.config, role, None)
            if not isinstance(config, (ActorConfig, SamplerConfig)) or (role != learner and is_trained(subject, role)):
                continue
            samples = computes(config)
            if samples == learns:
                continue
            autocast = config.training.autocast if isinstance(config, ActorConfig) else config.autocast
            change = SetField(f"{role}.autocast", learns)
            yield subject.finding(
                "HF714",
                f"'{role}' samples in {samples}, and '{learner}' learns in {learns}: their log-probs of the same "
                "tokens differ, so ratios are not 1 where the policy has not changed",
                f"{role}.{'autocast' if autocast else 'model.dtype'}",
                related={f"{learner}.training": f"computes in {learns}"},
                notes=(COST, correction(learner)),
                changes=(change,),
                advice=str(change),
            )


def references_compute_alike(subject: Subject) -> Iterator[Finding]:
    """A reference computes log-probs no less precisely than the policy that is compared with them."""
    for pair in (pair for program in subject.programs.values() for pair in less_precise_references(program)):
        config = getattr(subject.config, pair.role, None)
        if isinstance(config, ReferenceConfig) and subject.has(f"{pair.role}.autocast"):
            change = SetField(f"{pair.role}.autocast", pair.learns)
            yield subject.finding(
                "HF944",
                pair.message,
                f"{pair.role}.{'autocast' if config.autocast else 'model.dtype'}",
                related={f"{pair.learner}.training": f"computes in {pair.learns}"},
                notes=(KL_BIAS,),
                changes=(change,),
                advice=str(change),
            )


def ratios_are_without_dropout(subject: Subject) -> Iterator[Finding]:
    """An update that forms ratios computes without dropout."""
    for dropped in (ratio for program in subject.programs.values() for ratio in dropped_ratios(program)):
        role = dropped.update.role
        fields = [field for name in dropped.drops if subject.has(field := f"{role}.{name}")]
        if fields or subject.has(f"{role}.model"):
            yield subject.finding(
                "HF945",
                dropped.message,
                fields[0] if fields else f"{role}.model",
                notes=(WITHOUT,),
                changes=(SetField(fields[0], 0.0),) if len(dropped.drops) == len(fields) == 1 else (),
            )


def _has_loss(subject: Subject, table: str) -> bool:
    config: Any = getattr(subject.config, table) if table else subject.config
    return hasattr(config.options, "loss")
