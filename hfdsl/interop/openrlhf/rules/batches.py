"""Samples over ranks, train batches and micro-batches; ``openrlhf.units`` has a worked example."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.openrlhf.units import (
    DYNAMIC,
    GENERATED,
    MICRO,
    NAMES,
    PROMPTS,
    RING,
    SAMPLE_BATCH,
    SAMPLES,
    TENSOR,
    TRAIN,
    copy_size,
    gpu_keys,
    gpus,
    is_whole,
    models,
    ranks,
    samples,
    samples_of_ranks,
    uses_critic,
)
from hfdsl.interop.reporting import Problem, finding
from hfdsl.interop.settings import Configuration, is_integer


def ranks_have_sample_batches(c: Configuration) -> Iterator[Problem]:
    """Every rank has a sample batch."""
    # Of the actor: the last check of cli/train_ppo_ray.py, which comes before batches become dynamic. Of the others:
    # RayActorGroup.async_run_method_batch in trainer/ray/launcher.py.
    for role in models(c):
        if not is_whole(c, role):
            continue
        total, size, count = c.size(PROMPTS) * c.size(SAMPLES), c.size(SAMPLE_BATCH), ranks(c, role)
        if role != "actor":
            if c.value(DYNAMIC) is True:
                continue
            total = samples(c)
        batches = total // size if role == "actor" else -(-total // size)
        if batches < count:
            yield finding(
                c,
                "HF976",
                f"{PROMPTS} x {SAMPLES} = {total} samples are {batches} sample batches of {SAMPLE_BATCH} = {size}, and "
                f"the {NAMES[role]} has {count} data-parallel ranks",
                SAMPLE_BATCH,
                PROMPTS,
                SAMPLES,
                *gpu_keys(role),
                repairs=(SAMPLE_BATCH, PROMPTS, SAMPLES),
            )


def train_batches_divide(c: Configuration) -> Iterator[Problem]:
    """A train batch is a whole number of micro-batches of all ranks."""
    # DeepSpeed checks train_batch_size = micro-batch x accumulation x ranks (DeepSpeedConfig._batch_assertion). The
    # sizes come from get_ds_train_config and get_ds_eval_config in utils/deepspeed/deepspeed.py; with dynamic batches,
    # only models without an optimizer have them. How DeepSpeed counts ranks with tensor parallelism depends on its
    # version, so that the weaker demand counts here.
    dynamic, total, micro = c.value(DYNAMIC) is True, c.size(TRAIN), c.size(MICRO)
    if dynamic and is_whole(c, "actor") and total < ranks(c, "actor"):
        yield finding(
            c,
            "HF976",
            f"{TRAIN} = {total} samples are fewer than the {ranks(c, 'actor')} data-parallel ranks of the actor",
            TRAIN,
            *gpu_keys("actor"),
            repairs=(TRAIN,),
        )
        return
    reported = set[int]()
    for role in models(c):
        if not is_whole(c, role) or (dynamic and role in ("actor", "critic") and not _has_average(c, role)):
            continue
        divisor = micro * gpus(c, role) // c.size(TENSOR)
        if total * copy_size(c) % divisor and ranks(c, role) not in reported:
            reported.add(ranks(c, role))
            rows_of_ranks = micro * ranks(c, role)
            yield finding(
                c,
                "HF976",
                f"{TRAIN} = {total} samples are not a whole number of micro-batches: {MICRO} x ranks = {micro} x "
                f"{ranks(c, role)} data-parallel ranks of the {NAMES[role]} = {rows_of_ranks}, and "
                f"{total} % {rows_of_ranks} = {total % rows_of_ranks}",
                TRAIN,
                MICRO,
                *gpu_keys(role),
                *((RING,) if c.size(RING) > 1 else ()),
                *((TENSOR,) if c.size(TENSOR) > 1 else ()),
                repairs=(TRAIN, MICRO),
            )


def _has_average(c: Configuration, role: str) -> bool:
    return role == "actor" and c.value("train.enable_ema") is True


def trained(c: Configuration) -> list[str]:
    """The models that are trained on whole ranks."""
    return [role for role in ("actor", *(("critic",) if uses_critic(c) else ())) if is_whole(c, role)]


def ranks_train_equally(c: Configuration) -> Iterator[Problem]:
    """Every rank trains the same number of micro-batches."""
    # The driver deals consecutive sample batches to ranks (RayActorGroup.async_run_method_batch), and each rank reduces
    # its metrics over all ranks after each micro-batch (ActorPPOTrainer.ppo_train), so one with more of them waits.
    if c.value(DYNAMIC) is True:
        return
    micro = c.size(MICRO)
    for role in trained(c):
        counts = samples_of_ranks(c, role)
        steps = [count // micro for count in counts]
        if samples(c) // c.size(SAMPLE_BATCH) >= len(counts) and len(set(steps)) > 1:
            yield finding(
                c,
                "HF976",
                f"a step has {samples(c)} samples in sample batches of {SAMPLE_BATCH} = {c.size(SAMPLE_BATCH)}, so "
                f"that the first of {len(counts)} data-parallel ranks of the {NAMES[role]} trains {steps[0]} "
                f"micro-batches and the last one {steps[-1]}: one waits for the others forever",
                SAMPLE_BATCH,
                PROMPTS,
                SAMPLES,
                MICRO,
                *gpu_keys(role),
                repairs=(PROMPTS, SAMPLE_BATCH, SAMPLES),
            )
            return


def steps_have_optimizer_steps(c: Configuration) -> Iterator[Problem]:
    """A step has an optimizer step."""
    # NaiveReplayBuffer.setup_dynamic_batch: samples of a step // train.batch_size optimizer steps.
    if c.value(DYNAMIC) is True and samples(c) < c.size(TRAIN):
        yield finding(
            c,
            "HF976",
            f"{PROMPTS} x {SAMPLES} = {samples(c)} samples are fewer than {TRAIN} = {c.size(TRAIN)}: with dynamic "
            "batches, no optimizer step is ever made",
            TRAIN,
            PROMPTS,
            SAMPLES,
            repairs=(TRAIN, PROMPTS, SAMPLES),
        )


def samples_are_used(c: Configuration) -> Iterator[Problem]:
    """Optimizer steps use all samples of a step, and only those."""
    total, batch = samples(c), c.size(TRAIN)
    if c.value(DYNAMIC) is True:
        if total >= batch and total % batch:
            yield finding(
                c,
                "HF986",
                f"a step has {total} samples, {total // batch} optimizer steps of {TRAIN} = {batch} use "
                f"{total - total % batch}, and no update uses the other {total % batch}",
                TRAIN,
                PROMPTS,
                SAMPLES,
                repairs=(TRAIN, PROMPTS),
            )
        return
    for role in trained(c):
        rows_of_ranks = c.size(MICRO) * ranks(c, role)
        counts = samples_of_ranks(c, role)
        if batch % rows_of_ranks or len({count // c.size(MICRO) for count in counts}) > 1:
            continue  # an error says more
        unused = sum(count % c.size(MICRO) for count in counts)
        if unused:
            yield finding(
                c,
                "HF986",
                f"a step has {total} samples, {counts[0]} for each data-parallel rank of the {NAMES[role]}, which are "
                f"no whole micro-batches of {MICRO} = {c.size(MICRO)}: no update uses {unused} samples",
                MICRO,
                PROMPTS,
                SAMPLES,
                SAMPLE_BATCH,
                repairs=(MICRO, PROMPTS),
            )
            return
        if total % batch:
            first = f"{total // batch} optimizer steps and a part of one" if total > batch else "less than one"
            yield finding(
                c,
                "HF986",
                f"a step has {total} samples, which are {first} of {TRAIN} = {batch}: gradients of its last "
                f"{total % batch} samples are applied in the step after it, with other weights",
                TRAIN,
                PROMPTS,
                SAMPLES,
                repairs=(TRAIN, PROMPTS, SAMPLES),
            )
            return


def generation_fills_batches(c: Configuration) -> Iterator[Problem]:
    """A call of the engines gives the samples of a step."""
    # SamplesGenerator.generate_samples calls the engines once for a step.
    generated = c.value(GENERATED)
    if is_integer(generated) and 0 < generated < c.size(PROMPTS):
        yield finding(
            c,
            "HF986",
            f"{GENERATED} = {generated} prompts are fewer than {PROMPTS} = {c.size(PROMPTS)}: the engines are called "
            f"once a step, so that a step has {generated} prompts",
            GENERATED,
            PROMPTS,
            repairs=(GENERATED, PROMPTS),
        )
