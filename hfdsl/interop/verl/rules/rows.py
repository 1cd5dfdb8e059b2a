"""Rows over GPUs, mini-batches and micro-batches; ``verl.units`` has a worked example."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.reporting import Problem, finding, setting_fix
from hfdsl.interop.settings import Configuration, NotKnown
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MINI,
    GPUS,
    MICRO,
    MINI,
    MODE,
    NODES,
    REF,
    REF_MICRO,
    ROLLOUT,
    ROLLOUT_MICRO,
    SAMPLES,
    STRATEGY,
    SYNC_STEPS,
    TRAIN,
    gpus,
    padded_rows,
    rows,
    same_split,
    split_of,
    training_roles,
    updates_in_parts,
    uses_critic,
    uses_reference,
)


def rows_divide_over_gpus(c: Configuration) -> Iterator[Problem]:
    """The rows of a step divide over the GPUs."""
    if c.value(f"{ACTOR}.use_dynamic_bsz"):
        return
    count = c.size(TRAIN) * c.size(SAMPLES)
    if c.value(STRATEGY) == "megatron":
        split = split_of(c, ACTOR, STRATEGY)
        if split.gpus % split.per_row or not split.ranks:
            return
        divisor, keys = split.ranks * c.size(MICRO), (MICRO, *split.keys)
        divisor_text = f"{split.ranks} data-parallel ranks x {c.size(MICRO)} rows of a micro-batch = {divisor}"
    else:
        divisor, keys, divisor_text = gpus(c), (), f"{gpus(c)} GPUs"
    if count % divisor:
        yield finding(
            c,
            "HF976",
            f"{TRAIN} x n = {c.size(TRAIN)} x {c.size(SAMPLES)} = {count} rows do not divide by {divisor_text}: "
            f"{count} % {divisor} = {count % divisor}",
            TRAIN,
            SAMPLES,
            *keys,
            GPUS,
            NODES,
            repairs=(TRAIN, SAMPLES),
        )


def mini_batches_fit_batches(c: Configuration) -> Iterator[Problem]:
    """A mini-batch is no larger than the batch."""
    train = c.size(TRAIN)
    for key, dynamic, used in (
        (MINI, f"{ACTOR}.use_dynamic_bsz", True),
        (CRITIC_MINI, "critic.use_dynamic_bsz", uses_critic(c)),
    ):
        if used and not c.value(dynamic) and train < c.size(key):
            if c.owner(key) == MINI and key != MINI:
                continue  # said of the actor
            yield finding(
                c,
                "HF976",
                f"{key} = {c.size(key)} prompts are more than the {train} of {TRAIN}",
                key,
                TRAIN,
                repairs=(key, TRAIN),
            )


def mini_batches_divide_over_ranks(c: Configuration) -> Iterator[Problem]:
    """A mini-batch divides over the data-parallel ranks."""
    for mini, split in training_roles(c):
        if split.gpus % split.per_row or not split.ranks:
            continue
        count = c.size(mini) * c.size(SAMPLES)
        if count % split.ranks:
            if mini != MINI and c.owner(mini) == MINI:
                continue
            yield finding(
                c,
                "HF976",
                f"{mini} counts prompts: {c.size(mini)} prompts x {c.size(SAMPLES)} samples = {count} rows, which do "
                f"not divide over {split}: {count} % {split.ranks} = {count % split.ranks}",
                mini,
                SAMPLES,
                *split.keys,
                GPUS,
                NODES,
                repairs=(mini, SAMPLES),
            )


def micro_batches_divide_mini_batches(c: Configuration) -> Iterator[Problem]:
    """The rows of a mini-batch on a rank divide into micro-batches."""
    # Of the actor alone: verl 0.9 gives the critic's engine dynamic batches, whatever its micro-batch size is.
    split = split_of(c, ACTOR, STRATEGY)
    if c.value(f"{ACTOR}.use_dynamic_bsz") or c.value(MICRO) is None or split.gpus % split.per_row or not split.ranks:
        return
    count = c.size(MINI) * c.size(SAMPLES)
    per_rank = count // split.ranks
    if count % split.ranks == 0 and per_rank % c.size(MICRO):
        yield finding(
            c,
            "HF976",
            f"{MINI} counts prompts: {c.size(MINI)} prompts x {c.size(SAMPLES)} samples = {count} rows, {per_rank} on "
            f"each of {split}, which are not whole micro-batches of {c.size(MICRO)}: "
            f"{per_rank} % {c.size(MICRO)} = {per_rank % c.size(MICRO)}",
            MICRO,
            MINI,
            SAMPLES,
            *split.keys,
            GPUS,
            NODES,
            repairs=(MICRO, MINI),
        )


def log_prob_batches_divide(c: Configuration) -> Iterator[Problem]:
    """The rows on a rank divide into micro-batches of the log-probs."""
    pairs = [(ROLLOUT_MICRO, f"{ROLLOUT}.log_prob_use_dynamic_bsz")]
    if uses_reference(c):
        pairs.append((REF_MICRO, f"{REF}.log_prob_use_dynamic_bsz"))
    split = split_of(c, ACTOR, STRATEGY)
    if split.gpus % split.per_row or not split.ranks or c.size(MINI) * c.size(SAMPLES) % split.ranks:
        return
    if not c.value("trainer.use_v1"):
        raise NotKnown("trainer.use_v1", "the trainer before V1 does not pad", c.span("trainer.use_v1"))
    for micro, dynamic in pairs:
        if c.value(dynamic) or c.value(micro) is None or (micro == REF_MICRO and not same_split(c)):
            continue
        per_rank = padded_rows(c) // split.ranks
        if per_rank % c.size(micro):
            yield finding(
                c,
                "HF976",
                f"a step has {padded_rows(c)} rows, {per_rank} on each of {split}, which are not whole micro-batches "
                f"of {micro} = {c.size(micro)}: {per_rank} % {c.size(micro)} = {per_rank % c.size(micro)}",
                micro,
                TRAIN,
                SAMPLES,
                GPUS,
                NODES,
                repairs=(micro,),
            )


def separate_batches_are_parts(c: Configuration) -> Iterator[Problem]:
    """With separate GPUs, a batch is as many mini-batches as there are steps between syncs."""
    if c.value(MODE) != "separate_async":
        return
    train, mini, steps = c.size(TRAIN), c.size(MINI), c.size(SYNC_STEPS)
    if train != mini * steps:
        choices = [setting_fix(c, TRAIN, mini * steps)]
        if train % steps == 0:
            choices.append(setting_fix(c, MINI, train // steps))
        if train % mini == 0:
            choices.append(setting_fix(c, SYNC_STEPS, train // mini))
        yield finding(
            c,
            "HF976",
            f"{MODE} = separate_async takes {TRAIN} = parameter_sync_step x ppo_mini_batch_size = {steps} x {mini} = "
            f"{steps * mini} prompts, and it is {train}",
            TRAIN,
            MINI,
            SYNC_STEPS,
            advice=[" or ".join(sentence for sentence, _ in choices)],
            fixes=[f for _, fixes in choices for f in fixes],
        )


def batches_are_whole_mini_batches(c: Configuration) -> Iterator[Problem]:
    """A batch is whole mini-batches; V1 pads one that is not."""
    split = split_of(c, ACTOR, STRATEGY)
    if split.gpus % split.per_row or not split.ranks or not c.value("trainer.use_v1"):
        return
    padding = padded_rows(c) - rows(c)
    if (
        padding
        and c.size(TRAIN) // updates_in_parts(c) >= c.size(MINI)
        and not (c.size(MINI) * c.size(SAMPLES)) % split.ranks
    ):
        yield finding(
            c,
            "HF975",
            f"{rows(c)} rows a step are not whole mini-batches of {c.size(MINI)} prompts x {c.size(SAMPLES)} samples = "
            f"{c.size(MINI) * c.size(SAMPLES)} rows: verl adds {padding} padding rows without loss",
            TRAIN,
            MINI,
            SAMPLES,
            repairs=(TRAIN, MINI),
        )
