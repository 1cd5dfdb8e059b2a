"""The outline of a run of verl, in sentences."""

from __future__ import annotations

from hfdsl.interop.pages import Outline, counted
from hfdsl.interop.settings import Configuration, NotKnown, is_integer
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MICRO,
    CRITIC_MINI,
    GPUS,
    MICRO,
    MINI,
    MODE,
    MODEL,
    NODES,
    ROLLOUT,
    SAMPLES,
    STRATEGY,
    TRAIN,
    gpus,
    padded_rows,
    rows,
    split_of,
    updates_in_parts,
    uses_critic,
    uses_reference,
)


def _rows(c: Configuration) -> str:
    total = c.size(TRAIN) * c.size(SAMPLES)
    return (
        f"A step takes {counted(c.size(TRAIN), 'prompt')} ({TRAIN}) and samples {counted(c.size(SAMPLES), 'response')} "
        f"to each ({SAMPLES}): {counted(total, 'row')}, a row being a prompt with one response."
    )


def _tokens(c: Configuration) -> str:
    prompt, response = c.size("data.max_prompt_length"), c.size("data.max_response_length")
    total = c.size(TRAIN) * c.size(SAMPLES) * (prompt + response)
    return (
        f"A prompt has at most {prompt:,} tokens and a response at most {response:,}: a row has at most "
        f"{prompt + response:,}, a step at most {total:,}."
    )


def _advantages(c: Configuration) -> str:
    kl = "algorithm.use_kl_in_reward"
    terms = [f"with {name}" for key, name in ((f"{ACTOR}.use_kl_loss", "a KL term in the loss"),
                                             (kl, "a KL penalty in the rewards")) if c.value(key)]  # fmt: skip
    extra = f", {' and '.join(terms)}" if terms else ", without a KL term, so that there is no reference"
    return f"Advantages are those of {c.value('algorithm.adv_estimator')}{extra}."


def _mini_batch(c: Configuration, mini: str, model: str, role: str, strategy: str) -> str:
    split = split_of(c, role, strategy)
    count = c.size(mini) * c.size(SAMPLES)
    if split.gpus % split.per_row or count % split.ranks:
        raise NotKnown(mini, f"{count} rows do not divide over {split}", c.span(mini))
    return (
        f"{mini} counts prompts: a mini-batch of {model} is {c.size(mini):,} x {c.size(SAMPLES):,} = "
        f"{counted(count, 'row')}, {count // split.ranks:,} on each of {split}."
    )


def _actor_mini_batch(c: Configuration) -> str:
    return _mini_batch(c, MINI, "the actor", ACTOR, STRATEGY)


def _critic_mini_batch(c: Configuration) -> str:
    return _mini_batch(c, CRITIC_MINI, "the critic", "critic", "critic.strategy") if uses_critic(c) else ""


def _updates(c: Configuration, mini: str, epochs: str, model: str) -> str:
    parts, mini_batch_rows = updates_in_parts(c), c.size(mini) * c.size(SAMPLES)
    batches, repeats = padded_rows(c) // mini_batch_rows, c.size(epochs)
    total = parts * batches * repeats
    times = f" x {repeats} epochs ({epochs})" if repeats > 1 else ""
    in_parts = f"{counted(parts, 'part')} of a step x " if parts > 1 else ""
    return (
        f"The {model} makes {counted(total, 'optimizer step')} a step: {in_parts}{padded_rows(c):,} rows / "
        f"{mini_batch_rows:,} rows of a mini-batch{times}."
    )


def _actor_updates(c: Configuration) -> str:
    return _updates(c, MINI, f"{ACTOR}.ppo_epochs", "actor")


def _critic_updates(c: Configuration) -> str:
    return _updates(c, CRITIC_MINI, "critic.ppo_epochs", "critic") if uses_critic(c) else ""


def _micro_batches(c: Configuration) -> str:
    if c.value(f"{ACTOR}.use_dynamic_bsz"):
        budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
        return (
            f"A micro-batch is as many rows as {c.size(budget):,} tokens a GPU hold ({budget}); "
            "micro-batch sizes in rows are not used."
        )
    split = split_of(c, ACTOR, STRATEGY)
    per_rank, micro = c.size(MINI) * c.size(SAMPLES) // split.ranks, c.size(MICRO)
    rows = f"A micro-batch is {counted(micro, 'row')} of one data-parallel rank ({MICRO})"
    if per_rank % micro:
        return f"{rows}, which does not divide the rank's {per_rank:,} rows of an optimizer step."
    count = counted(per_rank // micro, "micro-batch")
    return f"{rows}: gradients add up over {per_rank:,} / {micro:,} = {count} for an optimizer step."


def _critic_micro_batches(c: Configuration) -> str:
    if not uses_critic(c) or c.value("critic.use_dynamic_bsz"):
        return ""
    return f"The critic's micro-batch is {counted(c.size(CRITIC_MICRO), 'row')} of one rank ({CRITIC_MICRO})."


def _padding(c: Configuration) -> str:
    if not c.value("trainer.use_v1"):
        raise NotKnown("trainer.use_v1", "the trainer before V1 does not pad", c.span("trainer.use_v1"))
    added = padded_rows(c) - rows(c)
    if not added:
        return "No row is padded: the rows are whole mini-batches on all ranks."
    return f"verl adds {counted(added, 'padding row')} without loss to the {rows(c):,}, to have whole mini-batches."


def _pool(c: Configuration) -> str:
    models = ["actor"]
    if c.value(MODE) != "separate_async":
        models.append("rollout")
    if uses_reference(c):
        models.append("reference")
    if uses_critic(c):
        models.append("critic")
    names = f"{', '.join(models[:-1])} and {models[-1]} share" if len(models) > 1 else "the actor has"
    return f"{names.capitalize()} {c.size(NODES)} x {c.size(GPUS)} = {counted(gpus(c), 'GPU')} ({NODES} x {GPUS})."


def _engines(c: Configuration) -> str:
    tensor, data = (c.size(f"{ROLLOUT}.{name}_parallel_size") for name in ("tensor_model", "data"))
    count, where = gpus(c), ""
    if c.value(MODE) == "separate_async":
        nodes, per_node = c.size(f"{ROLLOUT}.nnodes"), c.size(f"{ROLLOUT}.n_gpus_per_node")
        count, where = nodes * per_node, f" on {nodes} x {per_node} GPUs of its own"
    product = f"tensor {tensor} x data {data}" if data > 1 else f"tensor {tensor}"
    name = c.value(f"{ROLLOUT}.name")
    engine = f"of {name}" if name not in {None, "???"} else f"({ROLLOUT}.name is not set)"
    return (
        f"The rollout is {count // (tensor * data):,} engines {engine}, each on "
        f"{counted(tensor * data, 'GPU')} ({product}){where}."
    )


def _training(c: Configuration) -> str:
    return f"The actor trains with {c.value(STRATEGY)} on {split_of(c, ACTOR, STRATEGY)}."


def _reward(c: Configuration) -> str:
    table = "reward.reward_model"
    if not c.value(f"{table}.enable"):
        return "Rewards come from functions; there is no reward model."
    if not c.value(f"{table}.enable_resource_pool"):
        return f"The reward model shares these GPUs ({table}.enable_resource_pool = False)."
    per_node, nodes = c.size(f"{table}.n_gpus_per_node"), c.size(f"{table}.nnodes")
    return f"The reward model has {nodes} x {per_node} = {counted(nodes * per_node, 'GPU')} of its own."


def _staleness(c: Configuration) -> str:
    mode = c.value(MODE)
    if mode == "sync":
        return f"Every step samples with the weights that the step before left ({MODE} = sync): no row is stale."
    key = "trainer.v1.sampler.max_off_policy_threshold"
    limit, how = c.value(key), c.value("trainer.v1.sampler.max_off_policy_strategy")
    if limit is None:
        return f"Rows of any age are trained ({MODE} = {mode}, {key} = null)."
    effect = "older ones are dropped" if how == "drop" else "sampling waits for them"
    return f"A row may span at most {limit} versions of the weights ({MODE} = {mode}, {key}): {effect}."


def _off_policy(c: Configuration) -> str:
    mini_batch_rows = c.size(MINI) * c.size(SAMPLES)
    total = updates_in_parts(c) * (padded_rows(c) // mini_batch_rows) * c.size(f"{ACTOR}.ppo_epochs")
    if total == 1:
        return "One optimizer step a step: training is on-policy."
    return (
        f"Of {total:,} optimizer steps the first is on-policy; the last trains on rows that were sampled "
        f"{counted(total - 1, 'optimizer step')} before."
    )


def _memory(c: Configuration) -> str:
    share = c.value(f"{ROLLOUT}.gpu_memory_utilization")
    freed = c.known(f"{ROLLOUT}.free_cache_engine")
    after = ", and frees it while the models train" if freed and c.value(MODE) != "separate_async" else ""
    return f"The engine takes {share:.0%} of a GPU's memory ({ROLLOUT}.gpu_memory_utilization){after}."


def _model(c: Configuration) -> str:
    path, rank = c.value(f"{MODEL}.path"), c.known(f"{MODEL}.lora_rank")
    adapter = f", with LoRA adapters of rank {rank}" if is_integer(rank) and rank > 0 else ""
    return f"The model is {path}{adapter}; its size, and so its memory, is not part of the configuration."


OUTLINE: Outline = {
    "A step": (_rows, _tokens, _advantages),
    "Optimizer steps": (
        _actor_mini_batch,
        _actor_updates,
        _micro_batches,
        _critic_mini_batch,
        _critic_updates,
        _critic_micro_batches,
        _padding,
    ),
    "Who runs where": (_pool, _engines, _training, _reward),
    "Staleness": (_staleness, _off_policy),
    "Memory": (_memory, _model),
}
"""The page of a run."""
