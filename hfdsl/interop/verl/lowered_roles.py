"""The roles of a run of verl: their models, engines and micro-batches, and where they run.

Ranks that share rows, by tensor, sequence or context parallelism, are ranks along ``tp``: so every data-parallel rank
has the rows that verl gives it. An example on 8 GPUs: with ``ulysses_sequence_parallel_size`` 2 the mesh is dp = 4,
tp = 2; an engine on 4 GPUs is wider than ``tp``, so its size is left out; on 2 or 1, it has the ranks along ``tp``, or
one of them.
"""

from __future__ import annotations

from typing import Any

from hfdsl.interop.lowered_parts import RoleMesh, put_engines, put_generation
from hfdsl.interop.lowering import Draft, not_lowered, number, one_of, same, size, text
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MICRO,
    FSDP,
    GPUS,
    MICRO,
    MODE,
    MODEL,
    NODES,
    REF,
    REF_MICRO,
    ROLLOUT,
    ROLLOUT_MICRO,
    STRATEGY,
    DataParallelSplit,
    split_of,
    uses_critic,
)

REWARD_MODEL, CUSTOM = "reward.reward_model", "reward.custom_reward_function"
ENGINE, ENGINE_TP = f"{ROLLOUT}.name", f"{ROLLOUT}.tensor_model_parallel_size"
DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
LOG_PROBS = {
    MICRO: ROLLOUT_MICRO,
    f"{ACTOR}.use_dynamic_bsz": f"{ROLLOUT}.log_prob_use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu": f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
}
"""The micro-batches of updates, and those of the actor's log-probs, which have the same in hfdsl."""

SCORE = "hfdsl.interop.rewards:score_of_verl"


def lower_roles(draft: Draft, *, reference: bool) -> None:
    """The tables of all roles, and the deployment."""
    c = draft.configuration
    draft.put("deployment.pools.gpus.processes", [c.size(GPUS)] * c.size(NODES), GPUS, NODES)
    separate = c.value(MODE) == "separate_async"
    _policy(draft, engine=not separate)
    if separate:
        _sampler(draft)
    if reference:
        _reference(draft)
    if uses_critic(c):
        _critic(draft)
    _reward(draft)


# -- the policy


def _policy(draft: Draft, *, engine: bool) -> None:
    c = draft.configuration
    split = split_of(c, ACTOR, STRATEGY)
    _model(draft, "actor", f"{MODEL}.path")
    _precision(draft, "actor", ACTOR, STRATEGY, "actor.training.autocast")
    _generation(draft, "actor")
    if engine:
        _engine(draft)
    _training(draft, "actor", ACTOR, MODEL, STRATEGY)
    _batching(draft, "actor", MICRO, f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu", split)
    _place(draft, "actor", split, f"{ACTOR}.{_table(c, STRATEGY)}")
    for update, log_probs in LOG_PROBS.items():
        if c.known(update) == c.known(log_probs):
            draft.uses(log_probs)
    rank = c.known(f"{MODEL}.lora_rank")
    if is_integer(rank) and rank > 0:
        draft.take("actor.lora.rank", f"{MODEL}.lora_rank", size)
        draft.take("actor.lora.alpha", f"{MODEL}.lora_alpha", number)
        draft.take("actor.lora.targets", f"{MODEL}.target_modules", same)


def _generation(draft: Draft, role: str) -> None:
    put_generation(draft, role, "data.max_response_length")
    draft.take(f"{role}.generation.temperature", f"{ROLLOUT}.temperature", number)
    draft.take(f"{role}.generation.top_p", f"{ROLLOUT}.top_p", number)
    draft.take(f"{role}.generation.top_k", f"{ROLLOUT}.top_k", lambda value: max(0, int(number(value))))


def _engine_name(draft: Draft, role: str) -> None:
    draft.put(f"{role}.generation.engine", "vllm", ENGINE)
    if draft.configuration.known(ENGINE) != "vllm":
        draft.leave_out(ENGINE, "an engine of hfdsl is vLLM")


def _engine(draft: Draft) -> None:
    """Engines on the ranks of the actor."""
    c = draft.configuration
    split, stages = split_of(c, ACTOR, STRATEGY), _stages(c, ACTOR, STRATEGY)
    _engine_name(draft, "actor")
    put_engines(draft, RoleMesh(split.ranks, split.per_row // stages, split.keys, stages), c.size(ENGINE_TP), ENGINE_TP)


def _sampler(draft: Draft) -> None:
    """A sampler on GPUs of its own."""
    c = draft.configuration
    per_node, nodes, width = f"{ROLLOUT}.n_gpus_per_node", f"{ROLLOUT}.nnodes", c.size(ENGINE_TP)
    count = c.size(per_node) * c.size(nodes)
    if count % width:
        raise not_lowered(c, ENGINE_TP, f"{count} GPUs are not a whole number of engines")
    draft.refer("sampler.model", "actor.model", f"{MODEL}.path")
    _generation(draft, "sampler")
    _engine_name(draft, "sampler")
    if "actor.training.autocast" in draft.fields:
        draft.refer("sampler.autocast", "actor.training.autocast")
    draft.put("deployment.pools.rollout.processes", [c.size(per_node)] * c.size(nodes), per_node, nodes)
    draft.put("deployment.roles.sampler.pool", "rollout", MODE)
    draft.put("deployment.roles.sampler.mesh.dp", count // width, ENGINE_TP, per_node, nodes)
    draft.put("deployment.roles.sampler.mesh.tp", width, ENGINE_TP)


# -- the other models


def _reference(draft: Draft) -> None:
    c = draft.configuration
    draft.refer("reference.model", "actor.model", f"{MODEL}.path")
    if "actor.training.autocast" in draft.fields:
        draft.refer("reference.autocast", "actor.training.autocast")
    draft.take("reference.temperature", f"{ROLLOUT}.temperature", number)
    split = split_of(c, REF, f"{REF}.strategy")
    budget = f"{REF}.log_prob_max_token_len_per_gpu"
    _batching(draft, "reference", REF_MICRO, f"{REF}.log_prob_use_dynamic_bsz", budget, split)
    _place(draft, "reference", split, f"{REF}.{_table(c, f'{REF}.strategy')}")


def _critic(draft: Draft) -> None:
    c = draft.configuration
    split = split_of(c, "critic", "critic.strategy")
    _model(draft, "critic", "critic.model.path")
    _precision(draft, "critic", "critic", "critic.strategy", "critic.training.autocast")
    _training(draft, "critic", "critic", "critic.model", "critic.strategy")
    _batching(draft, "critic", CRITIC_MICRO, "critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu", split)
    _place(draft, "critic", split, f"critic.{_table(c, 'critic.strategy', of_critic=True)}")


def _reward(draft: Draft) -> None:
    c = draft.configuration
    enabled, pooled = f"{REWARD_MODEL}.enable", f"{REWARD_MODEL}.enable_resource_pool"
    draft.uses(enabled, pooled)
    if not c.value(enabled):
        _rule(draft)
        return
    draft.put("roles.reward", "hfdsl.rl.workers:RewardModel", enabled)
    if not draft.take("reward.model.path", f"{REWARD_MODEL}.model_path", text):
        draft.put("reward.model.path", "reward_model", note="the folder of the reward model")
    if not c.value(pooled):
        draft.put("deployment.roles.reward.pool", "gpus", pooled)
        return
    per_node, nodes = f"{REWARD_MODEL}.n_gpus_per_node", f"{REWARD_MODEL}.nnodes"
    draft.put("deployment.pools.judges.processes", [c.size(per_node)] * c.size(nodes), per_node, nodes)
    draft.put("deployment.roles.reward.pool", "judges", pooled)


def _rule(draft: Draft) -> None:
    """A reward by functions, which run on CPUs."""
    c = draft.configuration
    draft.put("roles.reward", "hfdsl.rl.workers:Verifier", f"{REWARD_MODEL}.enable")
    if c.known(f"{CUSTOM}.path") is None:
        draft.put("reward.function", SCORE, f"{CUSTOM}.path")
    else:
        note = f"score(response, task) of your own, which calls {c.known(f'{CUSTOM}.name')} with the fields of a row"
        draft.put("reward.function", "rewards:score", f"{CUSTOM}.path", f"{CUSTOM}.name", note=note)
        draft.leave_out(f"{CUSTOM}.path", "a verifier of hfdsl calls score(response, task)")
    draft.refer("reward.tokenizer", "data.tokenizer", f"{MODEL}.path")
    draft.put("deployment.pools.judges.processes", [1])
    draft.put("deployment.pools.judges.gpu", value=False)
    draft.put("deployment.roles.reward.pool", "judges")


# -- what models share


def _table(c: Configuration, strategy: str, *, of_critic: bool = False) -> str:
    """The table of an engine's settings."""
    name = c.value(strategy)
    return ("fsdp" if of_critic else "fsdp_config") if name in FSDP else str(name)


def _stages(c: Configuration, role: str, strategy: str) -> int:
    """The pipeline stages of a model."""
    return c.size(f"{role}.megatron.pipeline_model_parallel_size") if c.value(strategy) == "megatron" else 1


def _model(draft: Draft, role: str, path: str) -> None:
    if not draft.take(f"{role}.model.path", path, text):
        draft.put(f"{role}.model.path", "model", note="the folder of the model")


def _precision(draft: Draft, role: str, table: str, strategy: str, autocast: str) -> None:
    """Dtypes: Megatron and FSDP in 16 bits learn through float32 copies, FSDP in float32 computes in 16 bits."""
    c = draft.configuration
    settings = f"{table}.{_table(c, strategy, of_critic=table == 'critic')}"
    computes, stored = f"{settings}.dtype", f"{settings}.model_dtype"
    if c.value(strategy) == "megatron":
        if draft.take(f"{role}.model.dtype", computes, one_of(DTYPES)):
            draft.put(f"{role}.training.master_weights", value=True)
        return
    if c.has(stored):
        draft.take(f"{role}.model.dtype", stored, one_of(DTYPES))
    if c.has(computes):
        draft.take(autocast, computes, one_of(DTYPES))


def _training(draft: Draft, role: str, table: str, model: str, strategy: str) -> None:
    c = draft.configuration
    optimizer = f"{role}.training.optimizer"
    draft.take(f"{optimizer}.learning_rate", f"{table}.optim.lr", number)
    draft.take(f"{optimizer}.betas", f"{table}.optim.betas", _betas)
    draft.take(f"{optimizer}.weight_decay", f"{table}.optim.weight_decay", number)
    draft.take(f"{optimizer}.clip_norm", f"{table}.optim.clip_grad", number)
    _schedule(draft, optimizer, f"{table}.optim")
    checkpointing = f"{model}.enable_gradient_checkpointing"
    if c.has(checkpointing):
        draft.take(f"{role}.training.checkpointing", checkpointing, bool)
    draft.uses(strategy)
    if c.value(strategy) != "megatron":
        draft.put(f"{role}.training.sharding", "fsdp", strategy)


def _betas(value: Any) -> list[float]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{value} are not two decay rates")
    return [float(number(beta)) for beta in value]


def _schedule(draft: Draft, optimizer: str, table: str) -> None:
    """The schedule of the learning rate: verl counts steps, hfdsl optimizer steps, several per step."""
    c = draft.configuration
    style = next(key for key in (f"{table}.lr_decay_style", f"{table}.lr_scheduler_type") if c.has(key))
    draft.take(f"{optimizer}.schedule", style, one_of({"constant": "constant", "cosine": "cosine", "linear": "linear"}))
    fields = ("options.mini_batches" if "options.mini_batches" in draft.fields else "options.updates", "options.epochs")
    updates = 1
    for name in fields:
        updates *= draft.fields[name].value if name in draft.fields else 1
    warmup = c.known(f"{table}.lr_warmup_steps")
    if is_integer(warmup) and warmup > 0:
        draft.put(f"{optimizer}.warmup_steps", warmup * updates, f"{table}.lr_warmup_steps")
    ratio = c.known(f"{table}.min_lr_ratio")
    if isinstance(ratio, float) and ratio > 0:
        draft.take(f"{optimizer}.min_lr_ratio", f"{table}.min_lr_ratio", number)


def _batching(draft: Draft, role: str, micro: str, dynamic: str, budget: str, split: DataParallelSplit) -> None:
    """Micro-batches of rows, or of tokens: verl's budget is that of a GPU, and sequence parallelism has several."""
    c = draft.configuration
    draft.uses(dynamic)
    if c.value(dynamic):
        shares = split.per_row if split.names == "sequence parallel" else 1
        draft.put(f"{role}.batching.tokens", c.size(budget) * shares, budget, *split.keys)
        packed = f"{MODEL}.use_remove_padding"
        if c.known(packed) is True:
            draft.put(f"{role}.batching.packing", True, packed)
    elif is_integer(c.known(micro)):
        draft.take(f"{role}.batching.rows", micro, size)


def require_whole_copies(c: Configuration, split: DataParallelSplit) -> None:
    """Refuse GPUs that are not a whole number of data-parallel ranks.

    Raises:
        NotLowered: HF981.
    """
    if split.gpus % split.per_row:
        raise not_lowered(c, (*split.keys, GPUS)[0], f"{split.gpus} GPUs are not a whole number of copies of the model")


def _place(draft: Draft, role: str, split: DataParallelSplit, table: str) -> None:
    """The mesh of a role on the GPUs of the trainer."""
    c = draft.configuration
    require_whole_copies(c, split)
    stages = c.known(f"{table}.pipeline_model_parallel_size") if table.endswith(".megatron") else 1
    sizes = {"pp": stages, "dp": split.ranks, "tp": split.per_row // stages}
    draft.put(f"deployment.roles.{role}.pool", "gpus")
    for axis, count in sizes.items():
        if count > 1 or axis == "dp":
            draft.put(f"deployment.roles.{role}.mesh.{axis}", count, *(split.keys or (GPUS, NODES)))
    if split.names != "tensor parallel" and split.per_row > stages:
        for key in split.keys:
            if not key.endswith(("tensor_model_parallel_size", "pipeline_model_parallel_size")):
                draft.leave_out(key, "hfdsl slices a model along tp instead, with the same rows on each rank")
    if stages > 1:
        reason = "the plan has the ranks of all stages, and the ready-made roles no schedule of a pipeline"
        draft.leave_out(f"{table}.pipeline_model_parallel_size", reason)
    offload = f"{table}.param_offload"
    if c.known(offload) is True:
        draft.put(f"deployment.roles.{role}.offload", True, offload)
        draft.uses(f"{table}.optimizer_offload")
