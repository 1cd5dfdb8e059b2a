"""The outline of a run of OpenRLHF's trainer, in sentences."""

from __future__ import annotations

from hfdsl.interop.openrlhf.units import (
    ASYNC,
    COLOCATE_ALL,
    COLOCATE_REF,
    COLOCATE_REWARD,
    DYNAMIC,
    ENGINE_SIZE,
    ENGINES,
    ESTIMATOR,
    GENERATED,
    KL,
    MICRO,
    NAMES,
    PROMPTS,
    RING,
    SAMPLE_BATCH,
    SAMPLES,
    TENSOR,
    TRAIN,
    copy_size,
    engine_gpus,
    engines_share_gpus,
    gpus,
    is_set,
    is_whole,
    models,
    prompts,
    ranks,
    samples,
    samples_of_ranks,
    total_gpus,
    uses_critic,
    uses_reference,
)
from hfdsl.interop.pages import Outline, Sentence, counted
from hfdsl.interop.settings import Configuration, NotKnown


def _step(c: Configuration) -> str:
    key = PROMPTS if prompts(c) == c.size(PROMPTS) else GENERATED
    return (
        f"A step takes {counted(prompts(c), 'prompt')} ({key}) and samples {counted(c.size(SAMPLES), 'response')} to "
        f"each ({SAMPLES}): {counted(samples(c), 'sample')}, a sample being a prompt with one response."
    )


def _lengths(c: Configuration) -> str:
    longest = c.value("rollout.max_new_tokens")
    response = "what the prompt leaves" if longest is None else f"at most {longest:,} (rollout.max_new_tokens)"
    return (
        f"A sample has at most {c.size('data.max_len'):,} tokens (data.max_len), of which the response has {response}."
    )


def _rewards(c: Configuration) -> str:
    if is_set(c, "train.agent_func_path"):
        return f"Rewards come from the agent {c.known('train.agent_func_path', 'of the user')} (train.agent_func_path)."
    if is_set(c, "reward.remote_url"):
        return "Rewards come from a server or a function (reward.remote_url), with no reward model on GPUs."
    return f"Rewards come from the reward model {c.value('reward.model_name_or_path')}."


def _algorithm(c: Configuration) -> str:
    critic = "with a critic" if uses_critic(c) else "without a critic"
    if not uses_reference(c):
        reference = f"{KL} = {c.value(KL)}, so that there is no reference model"
    else:
        where = "the loss" if c.value("algo.kl.use_loss") is True else "the rewards"
        reference = f"the KL divergence from the reference enters {where} with {KL} = {c.value(KL)}"
    return f"Advantages are those of {c.value(ESTIMATOR)}, {critic}; {reference}."


def _filtering(c: Configuration) -> str:
    if c.value("algo.dynamic_filtering_enable") is not True:
        return ""
    low, high = c.value("algo.dynamic_filtering_range")
    return (
        f"Prompts whose mean score is not between {low} and {high} are replaced by others until the step is full, so "
        "that a step may generate many more samples."
    )


def _sample_batches(c: Configuration) -> str:
    if c.value(DYNAMIC) is True:
        tokens = c.value("rollout.max_tokens_per_gpu") or c.value("train.max_tokens_per_gpu")
        return (
            f"Log-probs and values are computed in batches of at most {tokens:,} tokens a GPU, balanced by length "
            f"({DYNAMIC}); a longer sample is a batch by itself."
        )
    count = -(-samples(c) // c.size(SAMPLE_BATCH))
    return (
        f"Log-probs, values and rewards are computed in {counted(count, 'sample batch')} of "
        f"{counted(c.size(SAMPLE_BATCH), 'sample')} ({SAMPLE_BATCH}), which divide over the ranks of each model in "
        "order."
    )


def _optimizer_steps(c: Configuration) -> str:
    if not is_whole(c, "actor"):
        raise NotKnown(RING, f"{copy_size(c)} GPUs a row do not divide {gpus(c, 'actor')}", c.span(RING))
    total, batch, epochs = samples(c), c.size(TRAIN), c.size("train.max_epochs")
    whole, remainder = divmod(total, batch)
    passes = f" x {counted(epochs, 'epoch')} (train.max_epochs)" if epochs > 1 else ""
    if not remainder:
        return (
            f"{TRAIN} counts samples: the actor makes {counted(whole * epochs, 'optimizer step')} a step, {total:,} "
            f"samples / {batch:,}{passes}."
        )
    return (
        f"{TRAIN} counts samples: {total:,} samples of a step are {whole} optimizer steps of {batch:,}{passes}, and "
        f"{remainder} samples are left."
    )


def _micro_batches(c: Configuration) -> str:
    if c.value(DYNAMIC) is True:
        return (
            f"A micro-batch has at most {c.size('train.max_tokens_per_gpu') * copy_size(c):,} tokens of a "
            "data-parallel rank (train.max_tokens_per_gpu); how many there are depends on the lengths."
        )
    counts, micro = samples_of_ranks(c, "actor"), c.size(MICRO)
    accumulated = c.size(TRAIN) // (micro * len(counts))
    return (
        f"A micro-batch is {counted(micro, 'sample')} of one data-parallel rank ({MICRO}). A rank of the actor has "
        f"{counted(counts[0], 'sample')} of a step, and gradients add up over {counted(accumulated, 'micro-batch')} "
        "for an optimizer step."
    )


def _model(role: str) -> Sentence:
    def sentence(c: Configuration) -> str:
        if role not in models(c):
            return ""
        count, row = gpus(c, role), copy_size(c)
        text = f"The {NAMES[role]} has {counted(count, 'GPU')}{_shared(c, role)}"
        if count % row or row == 1:
            return f"{text}, each a data-parallel rank." if count > 1 and row == 1 else f"{text}."
        return f"{text}, {ranks(c, role)} data-parallel ranks of {row} GPUs ({RING} x {TENSOR})."

    return sentence


def _shared(c: Configuration, role: str) -> str:
    if c.value(COLOCATE_REWARD) is True and uses_critic(c) and role in ("critic", "reward"):
        return " with the critic" if role == "reward" else ""
    if role != "actor" and (c.value(COLOCATE_ALL) is True or (role == "ref" and c.value(COLOCATE_REF) is True)):
        return " of the actor"
    return ""


def _engines(c: Configuration) -> str:
    where = "the actor's GPUs" if engines_share_gpus(c) else "GPUs of their own"
    share = c.value("vllm.gpu_memory_utilization")
    return (
        f"{counted(c.size(ENGINES), 'engine')} of vLLM with {counted(c.size(ENGINE_SIZE), 'GPU')} each "
        f"({ENGINES} x {ENGINE_SIZE} = {engine_gpus(c)}) generate on {where}, with {share:.0%} of the memory."
    )


def _total(c: Configuration) -> str:
    return f"The run takes {counted(total_gpus(c), 'GPU')} in all."


def _staleness(c: Configuration) -> str:
    if c.value(ASYNC) is not True:
        updates = -(-samples(c) // c.size(TRAIN)) * c.size("train.max_epochs")
        if updates <= 1:
            return "Training is on-policy: a step has one optimizer step, and then the engines get the weights."
        return (
            f"Training is off-policy by up to {counted(updates - 1, 'optimizer step')}: the engines get the weights "
            "after each step."
        )
    queue = c.size("train.async_queue_size")
    text = (
        f"Generation and training run at the same time ({ASYNC}), with up to {counted(queue, 'step')} of samples in "
        "the queue between them (train.async_queue_size): the weights that generate samples are up to "
        f"{counted(queue, 'step')} older than those that are trained on them."
    )
    if c.value("train.partial_rollout_enable") is True:
        text += " Responses that are unfinished at a weight update continue with the new weights."
    return text


OUTLINE: Outline = {
    "A step": (_step, _lengths, _rewards, _algorithm, _filtering),
    "Optimizer steps": (_sample_batches, _optimizer_steps, _micro_batches),
    "Who runs where": (*(_model(role) for role in NAMES), _engines, _total),
    "Staleness": (_staleness,),
}
"""The page of a run."""
