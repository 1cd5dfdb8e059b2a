"""The roles of a run of NeMo-RL: the policy with its engines, its reference, rewards, and where they run."""

from __future__ import annotations

from typing import Any

from hfdsl.interop.lowered_parts import (
    RoleMesh,
    demand_even_rows,
    put_engines,
    put_generation,
    put_mesh,
    put_reference,
    put_rule,
    put_sampler,
    updates_of_a_step,
)
from hfdsl.interop.lowering import Draft, not_lowered, number, one_of, same, size, text
from hfdsl.interop.nemo_rl.units import (
    BACKEND,
    COLOCATED,
    DTENSOR,
    DYNAMIC,
    GENERATION,
    GPUS,
    LOGPROB,
    MEGATRON,
    MICRO,
    NEW_TOKENS,
    NODES,
    OWN_GPUS,
    OWN_NODES,
    PACKING,
    REWARD_RESOURCES,
    VLLM,
    count,
    engine_size,
    generation_gpus,
    get,
    on,
    own_gpus,
    policy_nodes,
    reward_gpus,
    train_gpus,
    whole_split,
)
from hfdsl.interop.settings import Configuration, is_integer

STAGES = f"{MEGATRON}.pipeline_model_parallel_size"
PRECISION, MODEL, NORM = "policy.precision", "policy.model_name", "policy.max_grad_norm"
DTYPES = {name: name for name in ("float32", "bfloat16", "float16")}
REWARD_MODEL = "env.reward_model.model_name"


def lower_roles(draft: Draft, *, reference: bool) -> None:
    """The tables of all roles, and the deployment."""
    c = draft.configuration
    mesh = _mesh(c)
    nodes = (NODES, GPUS) if c.value(COLOCATED) else (NODES, GPUS, OWN_GPUS if policy_nodes(c) == 1 else OWN_NODES)
    used = policy_nodes(c) if c.value(COLOCATED) or policy_nodes(c) == 1 else policy_nodes(c) - own_gpus(c)[0]
    draft.put("deployment.pools.gpus.processes", [train_gpus(c) // used] * used, *nodes)
    _policy(draft, mesh)
    put_mesh(draft, "actor", "gpus", mesh)
    _leave_stages_out(draft, mesh)
    _engines(draft, mesh)
    if reference:
        put_reference(draft)
        _batching(draft, "reference", LOGPROB, "logprob_mb_tokens")
        put_mesh(draft, "reference", "gpus", mesh)
    _reward(draft)


def _mesh(c: Configuration) -> RoleMesh:
    split = whole_split(c)
    stages = count(c, STAGES) if on(c, f"{MEGATRON}.enabled") else 1
    return RoleMesh(split.ranks, split.row // stages, (*split.keys, GPUS, NODES), stages)


def _leave_stages_out(draft: Draft, mesh: RoleMesh) -> None:
    if mesh.stages > 1:
        draft.leave_out(
            STAGES, "the plan has the ranks of all stages, and the ready-made roles no schedule of a pipeline"
        )
    for key in mesh.keys:
        if key.endswith("context_parallel_size") and count(draft.configuration, key) > 1:
            draft.leave_out(key, "hfdsl slices a model along tp instead, with the same rows on each rank")


# -- the policy


def _policy(draft: Draft, mesh: RoleMesh) -> None:
    c = draft.configuration
    megatron = on(c, f"{MEGATRON}.enabled")
    draft.uses(f"{MEGATRON}.enabled", f"{DTENSOR}.enabled")
    if megatron:
        draft.uses("policy.optimizer", "policy.scheduler")
    if not draft.take("actor.model.path", MODEL, text):
        draft.put("actor.model.path", "model", note="the folder of the model")
    _precision(draft, megatron=megatron)
    checkpointing = f"{MEGATRON if megatron else DTENSOR}.activation_checkpointing"
    if c.has(checkpointing):
        draft.take("actor.training.checkpointing", checkpointing, bool)
    if not megatron:
        draft.put("actor.training.sharding", "fsdp", f"{DTENSOR}.enabled")
    _optimizer(draft, megatron=megatron)
    _sampling(draft, "actor", engine=bool(c.value(COLOCATED)))
    _batching(draft, "actor", MICRO, "train_mb_tokens")
    table = f"{MEGATRON}.peft" if megatron else f"{DTENSOR}.lora_cfg"
    if on(c, f"{table}.enabled"):
        if mesh.width > 1:
            raise not_lowered(c, f"{table}.enabled", "it has no adapters of a model that the ranks along tp share")
        draft.uses(f"{table}.enabled")
        draft.take("actor.lora.rank", f"{table}.dim", size)
        draft.take("actor.lora.alpha", f"{table}.alpha", number)
        draft.take("actor.lora.dropout", f"{table}.dropout", number)
        targets = c.known(f"{table}.target_modules")
        if isinstance(targets, list) and targets:
            draft.take("actor.lora.targets", f"{table}.target_modules", same)


def _precision(draft: Draft, *, megatron: bool) -> None:
    """Dtypes: Megatron learns through float32 copies of 16 bits, FSDP in float32 computes in 16 bits."""
    c = draft.configuration
    if megatron:
        if draft.take("actor.model.dtype", PRECISION, one_of(DTYPES)) and c.known(PRECISION) != "float32":
            draft.put("actor.training.master_weights", True, f"{MEGATRON}.enabled")
        return
    draft.put("actor.model.dtype", "float32", f"{DTENSOR}.enabled")
    draft.take("actor.training.autocast", PRECISION, one_of(DTYPES))


def _optimizer(draft: Draft, *, megatron: bool) -> None:
    c, optimizer = draft.configuration, "actor.training.optimizer"
    table = f"{MEGATRON}.optimizer" if megatron else "policy.optimizer.kwargs"
    epsilon = f"{table}.adam_eps" if megatron else f"{table}.eps"
    for name, key in (
        ("learning_rate", f"{table}.lr"),
        ("weight_decay", f"{table}.weight_decay"),
        ("epsilon", epsilon),
    ):
        if c.known(key) is not None:
            draft.take(f"{optimizer}.{name}", key, number)
    betas = (f"{table}.adam_beta1", f"{table}.adam_beta2") if megatron else (f"{table}.betas",)
    values = [c.known(key) for key in betas]
    values = values[0] if not megatron and isinstance(values[0], list) else values
    if len(values) == 2 and all(isinstance(value, float) for value in values):
        draft.put(f"{optimizer}.betas", list(values), *betas)
    norm = f"{table}.clip_grad" if megatron else NORM
    if c.known(norm):
        draft.take(f"{optimizer}.clip_norm", norm, number)
    if megatron:
        _megatron_schedule(draft, optimizer)
    else:
        _schedule(draft, optimizer)


def _megatron_schedule(draft: Draft, optimizer: str) -> None:
    """The schedule of Megatron's learning rate; NeMo-RL counts steps, and hfdsl optimizer steps."""
    c, table, updates = draft.configuration, f"{MEGATRON}.scheduler", updates_of_a_step(draft)
    style, warmup, decay = (f"{table}.{name}" for name in ("lr_decay_style", "lr_warmup_iters", "lr_decay_iters"))
    styles = {name: name for name in ("constant", "linear", "cosine")}
    draft.take(f"{optimizer}.schedule", style, one_of(styles))
    if is_integer(steps := c.known(warmup)) and steps > 0:
        draft.put(f"{optimizer}.warmup_steps", steps * updates, warmup)
    if c.known(style) in ("linear", "cosine"):
        if is_integer(steps := c.known(decay)) and steps > 0:
            draft.put(f"{optimizer}.total_steps", steps * updates, decay)
        highest, lowest = c.known(f"{MEGATRON}.optimizer.lr"), c.known(f"{MEGATRON}.optimizer.min_lr")
        if isinstance(highest, float) and isinstance(lowest, int | float) and 0 < lowest <= highest:
            draft.put(f"{optimizer}.min_lr_ratio", lowest / highest, f"{MEGATRON}.optimizer.min_lr")
    else:
        draft.uses(decay, f"{MEGATRON}.optimizer.min_lr")


def _schedule(draft: Draft, optimizer: str) -> None:
    """The schedule of PyTorch's schedulers: a warmup along a line, and then a constant rate or a cosine."""
    c, key, updates = draft.configuration, "policy.scheduler", updates_of_a_step(draft)
    parts = c.known(key)
    if not isinstance(parts, list):
        return
    named = [(str(part["name"]).rpartition(".")[2], part.get("kwargs")) for part in parts if _is_scheduler(part)]
    warmup = named[0][1] if named and named[0][0] == "LinearLR" and len(named) > 1 else None
    schedulers = named[1:] if warmup is not None else named
    schedules = {"ConstantLR": "constant", "CosineAnnealingLR": "cosine"}
    if (
        len(schedulers) != 1
        or schedulers[0][0] not in schedules
        or not _is_ratio(schedulers[0], c.known("policy.optimizer.kwargs.lr"))
    ):
        draft.leave_out(key, "schedules of hfdsl are constant, or fall along a line or a cosine, after a warmup")
        return
    draft.put(f"{optimizer}.schedule", schedules[schedulers[0][0]], key)
    steps = warmup.get("total_iters") if isinstance(warmup, dict) else None
    if is_integer(steps) and steps > 0:
        draft.put(f"{optimizer}.warmup_steps", steps * updates, key)
    arguments = schedulers[0][1]
    if schedulers[0][0] == "CosineAnnealingLR" and is_integer(length := arguments.get("T_max")):
        warm = draft.fields.get(f"{optimizer}.warmup_steps")
        draft.put(f"{optimizer}.total_steps", length * updates + (0 if warm is None else warm.value), key)


def _is_scheduler(part: Any) -> bool:
    return isinstance(part, dict) and "name" in part


def _is_ratio(part: tuple[str, Any], rate: Any) -> bool:
    """Whether a schedule ends where hfdsl's does: at the peak, or at 0."""
    name, arguments = part
    if not isinstance(arguments, dict) or not isinstance(rate, int | float):
        return False
    return arguments.get("factor") == 1 if name == "ConstantLR" else arguments.get("eta_min", 0) == 0


def _sampling(draft: Draft, role: str, *, engine: bool = True) -> None:
    c = draft.configuration
    put_generation(draft, role, NEW_TOKENS)
    for name in ("temperature", "top_p"):
        if c.known(f"{GENERATION}.{name}") is not None:
            draft.take(f"{role}.generation.{name}", f"{GENERATION}.{name}", number)
    if is_integer(c.known(f"{GENERATION}.top_k")):
        draft.take(f"{role}.generation.top_k", f"{GENERATION}.top_k", lambda value: max(0, value))
    if engine:
        draft.put(f"{role}.generation.engine", "vllm", BACKEND)
    if c.value(BACKEND) != "vllm":
        draft.leave_out(BACKEND, "an engine of hfdsl is vLLM")


def _engines(draft: Draft, mesh: RoleMesh) -> None:
    """Engines on the ranks of the actor, or a sampler on GPUs of its own."""
    c = draft.configuration
    is_vllm = c.value(BACKEND) == "vllm"
    width, key = (engine_size(c), f"{VLLM}.tensor_parallel_size") if is_vllm else (mesh.width, BACKEND)
    if is_vllm and count(c, f"{VLLM}.pipeline_parallel_size") > 1:
        draft.leave_out(f"{VLLM}.pipeline_parallel_size", "an engine of hfdsl has tensor parallelism alone")
    if c.value(COLOCATED):
        if is_vllm:
            put_engines(draft, mesh, width, key)
        return
    gpus = generation_gpus(c)
    if not is_vllm:
        width = 1
    if gpus % width:
        raise not_lowered(c, key, f"{gpus} GPUs are not a whole number of engines")
    nodes, per_node = own_gpus(c)
    _sampling(draft, "sampler")
    keys = (OWN_GPUS,) if nodes == 1 else (OWN_NODES, OWN_GPUS)
    put_sampler(draft, [per_node] * nodes, RoleMesh(gpus // width, width, (key, *keys)), *keys)


# -- batches and rewards


def _batching(draft: Draft, role: str, micro: str, tokens: str) -> None:
    """Micro-batches of rows, or of tokens of a data-parallel rank."""
    c = draft.configuration
    for table in (PACKING, DYNAMIC):
        draft.uses(f"{table}.enabled", f"{table}.train_mb_tokens", f"{table}.logprob_mb_tokens")
        if on(c, f"{table}.enabled"):
            draft.put(f"{role}.batching.tokens", c.size(f"{table}.{tokens}"), f"{table}.{tokens}")
            if table == PACKING:
                draft.put(f"{role}.batching.packing", True, f"{table}.enabled")
            draft.uses(MICRO, LOGPROB)
            return
    if is_integer(get(c, micro)):
        draft.take(f"{role}.batching.rows", micro, size)
    draft.uses(LOGPROB)


def _reward(draft: Draft) -> None:
    c = draft.configuration
    nodes, per_node = reward_gpus(c)
    if not per_node:
        put_rule(draft, "data.default.env_name")
        return
    draft.put("roles.reward", "hfdsl.rl.workers:RewardModel", "data.default.env_name")
    if not (c.has(REWARD_MODEL) and draft.take("reward.model.path", REWARD_MODEL, text)):
        draft.put("reward.model.path", "reward_model", note="the folder of the reward model")
    if c.has("env.reward_model.precision"):
        draft.take("reward.model.dtype", "env.reward_model.precision", one_of(DTYPES))
    keys = (f"{REWARD_RESOURCES}.gpus_per_node", f"{REWARD_RESOURCES}.num_nodes")
    draft.put("deployment.pools.judges.processes", [per_node] * nodes, *keys)
    draft.put("deployment.roles.reward.pool", "judges")
    demand_even_rows(draft, RoleMesh(nodes * per_node, 1, keys), "GPUs of the reward model")
