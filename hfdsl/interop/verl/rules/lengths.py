"""Lengths of prompts and responses against budgets of tokens."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.reporting import Problem, finding, setting_fix
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.verl.units import (
    ACTOR,
    REF,
    ROLLOUT,
    STRATEGY,
    DataParallelSplit,
    same_split,
    split_of,
    uses_reference,
)


def token_budgets_hold_a_row(c: Configuration) -> Iterator[Problem]:
    """A dynamic micro-batch holds the longest row."""
    longest = c.size("data.max_prompt_length") + c.size("data.max_response_length")
    split = split_of(c, ACTOR, STRATEGY)
    budgets = [(f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.use_dynamic_bsz")]
    budgets.append((f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz"))
    if uses_reference(c) and same_split(c):
        budgets.append((f"{REF}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_use_dynamic_bsz"))
    factor = _row_gpus(c, split)
    blamed = set[str]()
    for key, dynamic in budgets:
        owner = c.owner(key)
        if not c.value(dynamic) or owner in blamed or c.value(key) is None:
            continue
        budget = c.size(key) * factor
        if budget < longest:
            blamed.add(owner)
            over = f" x {factor} GPUs of a row" if factor > 1 else ""
            need = -(-longest // factor)
            sentence, fixes = setting_fix(c, key, need)
            yield finding(
                c,
                "HF978",
                f"{key} = {c.size(key)} tokens{over} hold no row of {longest} tokens (max_prompt_length + "
                "max_response_length): a step that samples a row above the budget fails",
                key,
                "data.max_prompt_length",
                "data.max_response_length",
                advice=(f"{sentence} or more",),
                fixes=fixes,
            )


def _row_gpus(c: Configuration, split: DataParallelSplit) -> int:
    """Over how many GPUs the tokens of one row are divided."""
    if c.value(STRATEGY) == "megatron":
        return c.size(f"{ACTOR}.megatron.context_parallel_size")
    return split.per_row


def contexts_hold_a_row(c: Configuration) -> Iterator[Problem]:
    """The engine's context holds the longest prompt with its response."""
    key = f"{ROLLOUT}.max_model_len"
    length = c.value(key)
    prompt, response = c.size("data.max_prompt_length"), c.size("data.max_response_length")
    if not is_integer(length) or length < 1 or length >= prompt + response:
        return
    sentence, fixes = setting_fix(c, key, prompt + response)
    effect = (
        f"leaves no room for a response to a prompt of {length} tokens or more"
        if length <= prompt
        else f"cuts responses to the longest prompts at {length - prompt} tokens"
    )
    yield finding(
        c,
        "HF978",
        f"{key} = {length} is below max_prompt_length + max_response_length = {prompt + response}, and {effect}",
        key,
        "data.max_prompt_length",
        "data.max_response_length",
        advice=(f"{sentence} or more",),
        fixes=fixes,
    )
