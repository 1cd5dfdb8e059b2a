"""Rows over optimizer steps, ranks and micro-batches; ``nemo_rl.units`` has a worked example."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.nemo_rl.units import (
    BACKEND,
    DYNAMIC,
    FILTER,
    GLOBAL,
    GPUS,
    LOGPROB,
    LONGEST,
    MICRO,
    NEW_TOKENS,
    NODES,
    PACKING,
    PROMPTS,
    SAMPLES,
    VLLM,
    estimator,
    get,
    has_fixed_batches,
    is_size,
    on,
    rows,
    whole_split,
)
from hfdsl.interop.reporting import Problem, finding
from hfdsl.interop.settings import Configuration


def steps_are_global_batches(c: Configuration) -> Iterator[Problem]:
    """The rows of a step are whole global batches."""
    # BatchedDataDict.shard_by_batch_size
    total, batch = rows(c), c.size(GLOBAL)
    if total % batch:
        yield finding(
            c,
            "HF976",
            f"{PROMPTS} x {SAMPLES} = {c.size(PROMPTS)} x {c.size(SAMPLES)} = {total} rows are not whole global "
            f"batches of {GLOBAL} = {batch}: {total} % {batch} = {total % batch}",
            GLOBAL,
            PROMPTS,
            SAMPLES,
            repairs=(GLOBAL, PROMPTS, SAMPLES),
        )


def global_batches_divide_over_ranks(c: Configuration) -> Iterator[Problem]:
    """A global batch divides over the data-parallel ranks."""
    # BatchedDataDict.shard_by_batch_size
    ranks, batch = whole_split(c), c.size(GLOBAL)
    if batch % ranks.ranks:
        yield finding(
            c,
            "HF976",
            f"{GLOBAL} = {batch} rows do not divide over {ranks.ranks} data-parallel ranks ({ranks.gpus} GPUs / "
            f"{ranks.row} that share a row): {batch} % {ranks.ranks} = {batch % ranks.ranks}",
            GLOBAL,
            *ranks.keys,
            GPUS,
            NODES,
            repairs=(GLOBAL,),
        )


def ranks_have_whole_micro_batches(c: Configuration) -> Iterator[Problem]:
    """The rows of a global batch on a rank are whole micro-batches."""
    # BatchedDataDict.make_microbatch_iterator
    if not has_fixed_batches(c):
        return
    ranks, batch, micro = whole_split(c), c.size(GLOBAL), c.size(MICRO)
    rank_rows = batch // ranks.ranks
    if batch % ranks.ranks == 0 and rank_rows % micro:
        yield finding(
            c,
            "HF976",
            f"{GLOBAL} = {batch} rows are {rank_rows} on each of {ranks.ranks} data-parallel ranks, which are not "
            f"whole micro-batches of {MICRO} = {micro}: {rank_rows} % {micro} = {rank_rows % micro}",
            MICRO,
            GLOBAL,
            *ranks.keys,
            GPUS,
            NODES,
            repairs=(MICRO, GLOBAL),
        )


def ranks_have_whole_logprob_batches(c: Configuration) -> Iterator[Problem]:
    """The rows of a step on a rank are whole micro-batches of the log-probs."""
    # The same, for get_logprobs, which takes the rows of a step at once
    if not has_fixed_batches(c) or not c.has(LOGPROB) or on(c, "loss_fn.force_on_policy_ratio"):
        return
    ranks, total, micro = whole_split(c), rows(c), c.size(LOGPROB)
    rank_rows = total // ranks.ranks
    if total % ranks.ranks == 0 and total % c.size(GLOBAL) == 0 and rank_rows % micro:
        yield finding(
            c,
            "HF976",
            f"a step has {total} rows, {rank_rows} on each of {ranks.ranks} data-parallel ranks, which are not whole "
            f"micro-batches of {LOGPROB} = {micro}: {rank_rows} % {micro} = {rank_rows % micro}",
            LOGPROB,
            PROMPTS,
            SAMPLES,
            *ranks.keys,
            GPUS,
            NODES,
            repairs=(LOGPROB, PROMPTS),
        )


def token_budgets_hold_a_row(c: Configuration) -> Iterator[Problem]:
    """A micro-batch of tokens holds the longest row."""
    # BatchedDataDict.shard_by_batch_size asserts it of dynamic batches, and SequencePacker of packed ones, when such a
    # row comes
    longest = c.size(LONGEST)
    for table in (DYNAMIC, PACKING):
        if not on(c, f"{table}.enabled"):
            continue
        for key in (f"{table}.train_mb_tokens", f"{table}.logprob_mb_tokens"):
            value = get(c, key)
            if is_size(value) and value < longest:
                yield finding(
                    c,
                    "HF978",
                    f"{key} = {value} tokens are fewer than a row may have, {LONGEST} = {longest}: the run stops when "
                    "one is longer than the budget",
                    key,
                    LONGEST,
                    advice=(f"set {key} to {longest} or more",),
                )


def responses_fit_contexts(c: Configuration) -> Iterator[Problem]:
    """The engine's context holds a response and a prompt."""
    if c.value(BACKEND) != "vllm" or not c.has(f"{VLLM}.max_model_len"):
        return
    context, response = f"{VLLM}.max_model_len", c.size(NEW_TOKENS)
    if c.size(context) < response:
        yield finding(
            c,
            "HF978",
            f"{context} = {c.size(context)} tokens are fewer than a response may have, {NEW_TOKENS} = {response}",
            context,
            NEW_TOKENS,
            advice=(f"set {NEW_TOKENS} to {c.size(context)} or less",),
        )


def groups_have_members(c: Configuration) -> Iterator[Problem]:
    """A prompt has responses that can be compared."""
    # calculate_baseline_and_std_per_prompt takes the reward itself as the baseline of a single response, and
    # dynamic_sampling keeps prompts whose rewards differ
    if c.size(SAMPLES) > 1 or estimator(c) not in ("grpo", "gdpo"):
        return
    if on(c, FILTER):
        yield finding(
            c,
            "HF974",
            f"{FILTER} keeps prompts whose rewards differ, and {SAMPLES} = 1 has one reward: no step is ever full",
            SAMPLES,
            FILTER,
            advice=(f"set {SAMPLES} to 2 or more",),
        )
    else:
        yield finding(
            c,
            "HF979",
            f"{SAMPLES} = 1: the reward of the only response is its own baseline, so that all advantages are 0",
            SAMPLES,
            advice=(f"set {SAMPLES} to 2 or more",),
        )


def loaders_divide_prompts(c: Configuration) -> Iterator[Problem]:
    """Several data loaders give a step's prompts in equal parts."""
    # setup in algorithms/grpo.py
    key = "data.num_prompts_per_dataloader"
    if not on(c, "data.use_multiple_dataloader") or on(c, FILTER):
        return
    if c.size(PROMPTS) % c.size(key):
        yield finding(
            c,
            "HF976",
            f"{PROMPTS} = {c.size(PROMPTS)} is not a multiple of {key} = {c.size(key)}",
            key,
            PROMPTS,
            repairs=(key, PROMPTS),
        )
