"""The outline of a run of NeMo-RL's GRPO, in sentences."""

from __future__ import annotations

from hfdsl.interop.nemo_rl.units import (
    ASYNC,
    BACKEND,
    COLOCATED,
    DYNAMIC,
    FILTER,
    GLOBAL,
    GPUS,
    LOGPROB,
    LONGEST,
    MEGATRON,
    MICRO,
    NEW_TOKENS,
    NODES,
    PACKING,
    PROMPTS,
    SAMPLES,
    VLLM,
    count,
    engine_size,
    estimator,
    generation_gpus,
    get,
    has_fixed_batches,
    on,
    reward_gpus,
    rows,
    split,
    train_gpus,
    whole_split,
)
from hfdsl.interop.pages import Outline, counted
from hfdsl.interop.settings import Configuration, NotKnown


def _step(c: Configuration) -> str:
    return (
        f"A step takes {counted(c.size(PROMPTS), 'prompt')} ({PROMPTS}) and samples "
        f"{counted(c.size(SAMPLES), 'response')} to each ({SAMPLES}): {counted(rows(c), 'row')}, a row being a prompt "
        "with one response."
    )


def _lengths(c: Configuration) -> str:
    return (
        f"A row has at most {c.size(LONGEST):,} tokens ({LONGEST}), of which the response has at most "
        f"{c.size(NEW_TOKENS):,} ({NEW_TOKENS})."
    )


def _filtering(c: Configuration) -> str:
    if not on(c, FILTER):
        return ""
    factor, batches = get(c, "grpo.batch_multiplier", 1), get(c, "grpo.dynamic_sampling_max_gen_batches")
    return (
        f"Prompts whose rewards are all the same are left out ({FILTER}). A call of the engines has "
        f"{int(c.size(PROMPTS) * factor):,} prompts, and there are up to {batches} calls until the step is full."
    )


def _algorithm(c: Configuration) -> str:
    penalty = get(c, "loss_fn.reference_policy_kl_penalty", 0.01)
    where = "the reward" if on(c, "loss_fn.use_kl_in_reward") else "the loss"
    text = f"the KL divergence from the reference enters {where} with reference_policy_kl_penalty = {penalty}"
    if penalty == 0:
        text = "nothing is added for the divergence from a reference"
    loss = "tokens" if get(c, "loss_fn.token_level_loss", True) else "sequences"
    return f"Advantages are those of {estimator(c)}; the loss is one mean over {loss}, and {text}."


def _optimizer_steps(c: Configuration) -> str:
    total, batch = rows(c), c.size(GLOBAL)
    if total % batch:
        raise NotKnown(GLOBAL, f"{total} rows are not whole global batches of {batch}", c.span(GLOBAL))
    return (
        f"{GLOBAL} counts rows: a step has {counted(total // batch, 'optimizer step')}, {total:,} rows / {batch:,} "
        "rows of a global batch."
    )


def _micro_batches(c: Configuration) -> str:
    ranks, batch = whole_split(c), c.size(GLOBAL)
    rank_rows = batch / ranks.ranks
    text = f"A global batch is {rank_rows:,.10g} rows on each of {counted(ranks.ranks, 'data-parallel rank')}."
    if has_fixed_batches(c):
        micro = c.size(MICRO)
        if rank_rows % micro:
            raise NotKnown(MICRO, f"{rank_rows:g} rows are not whole micro-batches of {micro}", c.span(MICRO))
        return (
            f"{text} A micro-batch is {counted(micro, 'row')} of one rank ({MICRO}): gradients add up over "
            f"{rank_rows:g} / {micro} = {counted(int(rank_rows // micro), 'micro-batch')} for an optimizer step."
        )
    table, kind = (PACKING, "packed into sequences") if on(c, f"{PACKING}.enabled") else (DYNAMIC, "grouped by length")
    tokens = c.size(f"{table}.train_mb_tokens")
    return (
        f"{text} Its rows are {kind}, up to {tokens:,} tokens a micro-batch ({table}.train_mb_tokens), so that a "
        "micro-batch has no fixed number of rows."
    )


def _log_probs(c: Configuration) -> str:
    if not has_fixed_batches(c) or not c.has(LOGPROB):
        return ""
    return f"Log-probs are computed in micro-batches of {counted(c.size(LOGPROB), 'row')} ({LOGPROB})."


def _training(c: Configuration) -> str:
    backend = "Megatron" if on(c, f"{MEGATRON}.enabled") else "DTensor (FSDP2)"
    ranks = split(c)
    text = f"{backend} trains on {counted(ranks.gpus, 'GPU')} of {NODES} x {GPUS} = {c.size(NODES)} x {c.size(GPUS)}"
    if not ranks.is_whole:
        raise NotKnown(ranks.keys[0], f"{ranks.row} GPUs of a row do not divide {ranks.gpus}", c.span(ranks.keys[0]))
    if ranks.row == 1:
        return f"{text}, each a data-parallel rank."
    names = " x ".join(f"{key.rpartition('.')[2]} {count(c, key)}" for key in ranks.keys)
    return f"{text}: {counted(ranks.ranks, 'data-parallel rank')} of {ranks.row} GPUs ({names})."


def _generation(c: Configuration) -> str:
    where = "the same GPUs, by turns" if c.value(COLOCATED) else f"{counted(generation_gpus(c), 'GPU')} of its own"
    if c.value(BACKEND) != "vllm":
        return f"{c.value(BACKEND)} generates on {where}."
    size, gpus = engine_size(c), generation_gpus(c)
    if gpus % size:
        raise NotKnown(VLLM, f"{size} GPUs of an engine do not divide {gpus}", c.span(VLLM))
    engines = f"{counted(gpus // size, 'engine')} of {counted(size, 'GPU')} each"
    share = get(c, f"{VLLM}.gpu_memory_utilization")
    memory = f", with {share:.0%} of the memory" if isinstance(share, int | float) else ""
    return f"vLLM generates on {where}: {engines}{memory}."


def _reward(c: Configuration) -> str:
    nodes, per_node = reward_gpus(c)
    if not per_node:
        return ""
    return f"The reward model takes {counted(per_node, 'GPU')} of each of {counted(nodes, 'node')}."


def _total(c: Configuration) -> str:
    used = train_gpus(c) + (0 if c.value(COLOCATED) else generation_gpus(c))
    nodes, per_node = reward_gpus(c)
    total = c.size(NODES) * c.size(GPUS)
    unused = total - used - nodes * per_node
    return f"The cluster has {counted(total, 'GPU')}{f', of which {unused} are not used' if unused > 0 else ''}."


def _staleness(c: Configuration) -> str:
    steps = -(-rows(c) // c.size(GLOBAL))
    if on(c, ASYNC):
        age = counted(c.size("grpo.async_grpo.max_trajectory_age_steps"), "step")
        flying = " Responses that are unfinished at a weight update continue with the new weights."
        return (
            f"Generation and training run at the same time ({ASYNC}): rows are at most {age} old when they are "
            "trained on (max_trajectory_age_steps)."
            f"{flying if on(c, 'grpo.async_grpo.in_flight_weight_updates') else ''}"
        )
    if steps == 1:
        return "Training is on-policy: a step has one optimizer step, and then the engines get the weights."
    return (
        f"Training is off-policy by up to {counted(steps - 1, 'optimizer step')}: the engines get the weights after "
        "each step."
    )


OUTLINE: Outline = {
    "A step": (_step, _filtering, _lengths, _algorithm),
    "Optimizer steps": (_optimizer_steps, _micro_batches, _log_probs),
    "Who runs where": (_training, _generation, _reward, _total),
    "Staleness": (_staleness,),
}
"""The page of a run."""
