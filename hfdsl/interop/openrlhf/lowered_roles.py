"""The roles of a run of OpenRLHF: models with their pools, engines and rewards."""

from __future__ import annotations

from hfdsl.interop.lowered_parts import (
    SCHEDULES,
    RoleMesh,
    demand_even_rows,
    put_engines,
    put_generation,
    put_mesh,
    put_reference,
    put_rule,
    put_sampler,
)
from hfdsl.interop.lowering import Draft, not_lowered, number, one_of, same, size, text
from hfdsl.interop.openrlhf.units import (
    ASYNC,
    COLOCATE_ALL,
    COLOCATE_REF,
    COLOCATE_REWARD,
    DYNAMIC,
    ENGINE_SIZE,
    ENGINES,
    MICRO,
    NAMES,
    RING,
    SAMPLE_BATCH,
    TENSOR,
    copy_size,
    engine_gpus,
    engines_share_gpus,
    gpu_keys,
    gpus,
    is_set,
    is_whole,
    ranks,
    rewards_are_remote,
    uses_critic,
)
from hfdsl.interop.settings import Configuration, is_integer

EPOCHS, RESPONSE, PRECISION = "train.max_epochs", "rollout.max_new_tokens", "ds.param_dtype"
TOKENS, ROLLOUT_TOKENS, PACKING = "train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu", "ds.packing_samples"
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
WITH_LEAST = "cosine_with_min_lr"


def lower_roles(draft: Draft) -> None:
    """The tables of all roles, and the deployment; which roles there are follows from the dataflow's options."""
    c = draft.configuration
    draft.uses(COLOCATE_ALL, COLOCATE_REF, COLOCATE_REWARD, "vllm.enable_sleep", "ds.enable_sleep")
    _place(draft, "actor", "actor")
    _policy(draft)
    _engines(draft)
    if _reads_reference(draft):
        put_reference(draft)
        _batching(draft, "reference", SAMPLE_BATCH, ROLLOUT_TOKENS)
        _place(draft, "reference", "ref")
    if uses_critic(c):
        _critic(draft)
    _reward(draft)


def _reads_reference(draft: Draft) -> bool:
    """Whether a KL term is one of the loss, or of the rewards."""
    terms = (draft.fields.get(name) for name in ("options.loss.kl", "options.kl"))
    return any(term is not None and term.value != 0 for term in terms)


def _pool(c: Configuration, role: str) -> str:
    """The model whose GPUs a model has."""
    if role in ("critic", "reward") and uses_critic(c) and c.value(COLOCATE_REWARD) is True:
        return "critic"
    if c.value(COLOCATE_ALL) is True or (role == "ref" and c.value(COLOCATE_REF) is True):
        return "actor"
    return role


def _place(draft: Draft, role: str, model: str) -> None:
    """The mesh of a model on its pool."""
    c = draft.configuration
    owner, (nodes, per_node) = _pool(c, model), gpu_keys(model)
    if not is_whole(c, model):
        raise not_lowered(c, per_node, f"{gpus(c, model)} GPUs are not a whole number of copies of the model")
    if gpus(c, owner) != gpus(c, model):
        why = f"models that share GPUs have all of them, and the {NAMES[owner]} has {gpus(c, owner)}"
        raise not_lowered(c, per_node, why)
    pool = "gpus" if owner == "actor" else NAMES[owner].replace(" ", "_")
    keys = gpu_keys(owner)
    draft.put(f"deployment.pools.{pool}.processes", [c.size(keys[1])] * c.size(keys[0]), *keys)
    draft.uses(nodes, per_node)
    put_mesh(draft, role, pool, _mesh(c, model))
    if c.size(RING) > 1:
        draft.leave_out(RING, "hfdsl slices a model along tp instead, with the same rows on each rank")


def _mesh(c: Configuration, model: str) -> RoleMesh:
    shared = tuple(key for key in (RING, TENSOR) if c.size(key) > 1)
    return RoleMesh(ranks(c, model), copy_size(c), (*gpu_keys(model)[::-1], *shared))


# -- models that learn


def _policy(draft: Draft) -> None:
    c = draft.configuration
    _model(draft, "actor", "actor.model_name_or_path")
    _training(draft, "actor")
    _sampling(draft, "actor")
    _batching(draft, "actor", MICRO, TOKENS)
    draft.uses(SAMPLE_BATCH, ROLLOUT_TOKENS)
    rank = c.known("ds.lora.rank")
    if is_integer(rank) and rank > 0:
        if copy_size(c) > 1:
            raise not_lowered(c, "ds.lora.rank", "it has no adapters of a model that the ranks along tp share")
        draft.take("actor.lora.rank", "ds.lora.rank", size)
        draft.take("actor.lora.alpha", "ds.lora.alpha", number)
        draft.take("actor.lora.dropout", "ds.lora.dropout", number)
        if isinstance(c.known("ds.lora.target_modules"), list):
            draft.take("actor.lora.targets", "ds.lora.target_modules", same)


def _model(draft: Draft, role: str, key: str) -> None:
    c = draft.configuration
    if not (is_set(c, key) and draft.take(f"{role}.model.path", key, text)):
        draft.put(f"{role}.model.path", "model", note="the folder of the model")
    draft.take(f"{role}.model.dtype", PRECISION, one_of(DTYPES))
    draft.take(f"{role}.model.attention", "ds.attn_implementation", text)


def _training(draft: Draft, role: str) -> None:
    """DeepSpeed learns through float32 copies of parameters in 16 bits."""
    c, optimizer = draft.configuration, f"{role}.training.optimizer"
    draft.put(f"{role}.training.master_weights", True, PRECISION)
    draft.put(f"{role}.training.sharding", "fsdp", "ds.zero_stage")
    checkpointing = "actor.gradient_checkpointing_enable"
    draft.take(f"{role}.training.checkpointing", checkpointing, bool)
    if c.known(f"{role}.optim") != "adam":
        draft.leave_out(f"{role}.optim", "hfdsl's optimizer is AdamW")
    names = {"learning_rate": "adam.lr", "epsilon": "adam.eps", "weight_decay": "adam.weight_decay"}
    for name, key in {**names, "clip_norm": "max_norm"}.items():
        draft.take(f"{optimizer}.{name}", f"{role}.{key}", number)
    betas = c.known(f"{role}.adam.betas")
    if isinstance(betas, list) and len(betas) == 2:
        draft.put(f"{optimizer}.betas", betas, f"{role}.adam.betas")
    schedule, least = f"{role}.lr_scheduler", f"{role}.min_lr_ratio"
    if draft.take(f"{optimizer}.schedule", schedule, one_of(SCHEDULES)) and c.known(schedule) == WITH_LEAST:
        draft.take(f"{optimizer}.min_lr_ratio", least, number)
    warmup = f"{role}.lr_warmup_ratio"
    if c.known(warmup) != 0:
        draft.leave_out(warmup, "warmup_steps of hfdsl is a number of optimizer steps, which here depends on the data")


def _critic(draft: Draft) -> None:
    c = draft.configuration
    path = next(key for key in ("critic.model_name_or_path", "reward.model_name_or_path", "actor.model_name_or_path")
                if is_set(c, key) or key.startswith("actor"))  # fmt: skip  # as cli/train_ppo_ray.py takes it
    _model(draft, "critic", path)
    _training(draft, "critic")
    _batching(draft, "critic", MICRO, TOKENS)
    _place(draft, "critic", "critic")


def _batching(draft: Draft, role: str, micro: str, tokens: str) -> None:
    """Micro-batches of rows, or of the tokens of the GPUs that share a row."""
    c = draft.configuration
    draft.uses(DYNAMIC, PACKING)
    if c.value(DYNAMIC) is True:
        key = tokens if c.known(tokens) else TOKENS
        draft.put(f"{role}.batching.tokens", c.size(key) * copy_size(c), key)
        if c.value(PACKING) is True:
            draft.put(f"{role}.batching.packing", True, PACKING)
        draft.uses(micro)
    else:
        draft.put(f"{role}.batching.rows", c.size(micro), micro)


# -- engines and rewards


def _sampling(draft: Draft, role: str) -> None:
    c = draft.configuration
    put_generation(draft, role, RESPONSE)
    draft.take(f"{role}.generation.temperature", "rollout.temperature", number)
    draft.take(f"{role}.generation.top_p", "rollout.top_p", number)
    if role == "sampler" or engines_share_gpus(c):
        draft.put(f"{role}.generation.engine", "vllm", ENGINES)


def _engines(draft: Draft) -> None:
    """Engines on the ranks of the actor, or a sampler on GPUs of its own."""
    c = draft.configuration
    width = c.size(ENGINE_SIZE)
    draft.uses(ASYNC)
    if engines_share_gpus(c):
        if engine_gpus(c) != gpus(c, "actor"):
            why = f"engines that share GPUs with the actor have all of them, and it has {gpus(c, 'actor')}"
            raise not_lowered(c, ENGINES, why)
        put_engines(draft, _mesh(c, "actor"), width, ENGINE_SIZE)
        return
    _sampling(draft, "sampler")
    count = engine_gpus(c)
    note = "all on one node" if count > 8 else ""  # the GPUs of a usual node
    put_sampler(draft, [count], RoleMesh(c.size(ENGINES), width, (ENGINES, ENGINE_SIZE)), ENGINES, ENGINE_SIZE,
                note=note)  # fmt: skip


def _reward(draft: Draft) -> None:
    c = draft.configuration
    if rewards_are_remote(c):
        put_rule(draft, "reward.remote_url")
        draft.leave_out("reward.remote_url", "a verifier of hfdsl calls score(response, task) with a row of the data")
        return
    key = "reward.model_name_or_path"
    draft.put("roles.reward", "hfdsl.rl.workers:RewardModel", key)
    _model(draft, "reward", key)
    _batching(draft, "reward", SAMPLE_BATCH, ROLLOUT_TOKENS)
    _place(draft, "reward", "reward")
    demand_even_rows(draft, _mesh(c, "reward"), "ranks of the reward model")
