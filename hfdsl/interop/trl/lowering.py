"""A run of TRL's online trainers as a run of hfdsl.

A step of hfdsl is a generation of TRL with all that is trained on it, in the units of ``trl.units``. Its example of 8
processes, 4 completions on each, 4 micro-batches to an optimizer step and 16 completions to a prompt has a generation
of 128 completions: ``B`` is 8 prompts, ``group`` 16, and ``updates`` 4 / 4 = 1.
"""

from __future__ import annotations

from typing import Any

from hfdsl.interop.lowered_parts import SCHEDULES
from hfdsl.interop.lowering import (
    Draft,
    Lowered,
    integer,
    is_among,
    not_lowered,
    number,
    one_of,
    same,
    size,
    text,
    unknown_size,
)
from hfdsl.interop.settings import MISSING, Configuration, NotKnown, is_integer
from hfdsl.interop.trl.units import (
    ACCUMULATION,
    GENERATION,
    GROUP,
    ITERATIONS,
    PROCESSES,
    ROWS,
    STEPS,
    generation,
    steps_per_generation,
)

OWN, READY = "hfdsl.rl.policy_gradient", "hfdsl.rl.dataflows"
AGGREGATIONS = {
    "grpo": "sequence-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "sequence-mean-token-sum",
    "cispo": "token-mean",
}
SCALES = {"group": "group", True: "group", "none": "centered", False: "centered"}
COMPLETION, MODEL, MAX_STEPS, SAVE_STEPS = "max_completion_length", "model_name_or_path", "max_steps", "save_steps"
ENGINE_WIDTH, CONTEXT = "vllm_tensor_parallel_size", "vllm_max_model_length"
UNITS = (ROWS, PROCESSES, ACCUMULATION, STEPS, GENERATION, GROUP, ITERATIONS)

REASONS = {
    "num_train_epochs": "a run of hfdsl takes steps, and those of an epoch depend on the rows of the data",
    "save_strategy": "hfdsl writes a checkpoint every so many steps",
    "eval_strategy": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "eval_steps": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "per_device_eval_batch_size": "[evaluation] of hfdsl takes its rows at once",
    "logging_steps": "hfdsl writes metrics of every step",
    "logging_first_step": "hfdsl writes metrics of every step",
    "log_completions": "hfdsl writes samples of an evaluation",
    "push_to_hub": "hfdsl export saves a model",
    "deepspeed": 'hfdsl shards a model by actor.training.sharding = "fsdp"',
    "vllm_gpu_memory_utilization": "the engine's cache has generation.cache_tokens in hfdsl",
    "vllm_enable_sleep_mode": "an engine of hfdsl sleeps while the model trains",
    "remove_unused_columns": "rows of hfdsl keep all their fields",
    "torch_compile": "model.compile of hfdsl compiles passes over whole sequences",
    "gradient_checkpointing_kwargs": "hfdsl chooses them",
    "optim": "hfdsl's optimizer is AdamW",
    "attn_implementation": "it is model.attention in hfdsl",
}
"""Why a setting is left out, by its key."""


def lower(c: Configuration) -> Lowered:
    """The run of hfdsl that the arguments of a trainer of TRL describe.

    Raises:
        NotLowered: HF981 for a step that no dataflow of hfdsl has, HF982 if a size is not known.
    """
    try:
        draft = Draft(c)
        _algorithm(draft)
        _sizes(draft)
        _loss(draft)
        _run(draft)
        _data(draft)
        _roles(draft)
        return draft.lowered(REASONS)
    except NotKnown as error:
        raise unknown_size(c, error) from None


def _is_rloo(c: Configuration) -> bool:
    """Whether the trainer is RLOO's, which has no types of losses."""
    return not c.has("loss_type")


def _updates(c: Configuration) -> int:
    """The optimizer steps of an iteration over a generation."""
    passes, accumulated = steps_per_generation(c), c.size(ACCUMULATION)
    if passes % accumulated:
        why = f"{passes} micro-batches of a generation are not whole optimizer steps of {accumulated}"
        raise not_lowered(c, ACCUMULATION, why)
    return passes // accumulated


def _algorithm(draft: Draft) -> None:
    c = draft.configuration
    total, group, updates, iterations = generation(c), c.size(GROUP), _updates(c), c.size(ITERATIONS)
    if total % group:
        raise not_lowered(c, GROUP, f"{total} completions are not whole groups")
    has_reference = c.value("beta") != 0
    draft.put("dims.B", total // group, *UNITS)
    draft.put("options.group", group, GROUP)
    draft.uses(*UNITS)
    if _is_rloo(c):
        if updates * iterations > 1:
            raise not_lowered(c, STEPS, "its RLOO clips the ratio of each token, and TRL's that of a completion")
        draft.put("options.advantages", "leave-one-out")
        if has_reference:
            draft.take("options.kl", "beta", number)
        draft.put("algorithm", f"{OWN}:without_critic", "beta")
        draft.put("options.updates", updates, ACCUMULATION, STEPS)
        draft.uses("beta")
        return
    kind, scale = _loss_kind(c), c.value("scale_rewards")
    if not is_among(scale, SCALES):
        raise not_lowered(c, "scale_rewards", "it scales rewards by those of a group, or not at all")
    draft.uses("scale_rewards", "loss_type", "importance_sampling_level", "beta")
    draft.put("options.updates", updates, ACCUMULATION, STEPS)
    ready = {
        ("Clip", "group", True, 1): "grpo:grpo",
        ("Clip", "group", False, 1): "grpo:grpo_without_reference",
        ("Clip", "centered", False, 1): "dr_grpo:dr_grpo",
        ("SequenceClip", "group", False, 1): "gspo:gspo",
    }
    shape = (kind, SCALES[scale], has_reference, iterations)
    if shape in ready:
        draft.put("algorithm", f"{READY}.{ready[shape]}", "loss_type", "beta")
        return
    draft.put("algorithm", f"{OWN}:without_critic", "loss_type", "beta")
    draft.put("options.advantages", SCALES[scale], "scale_rewards")
    draft.put("options.epochs", iterations, ITERATIONS)


def _loss_kind(c: Configuration) -> str:
    loss, level = c.value("loss_type"), c.value("importance_sampling_level")
    if not is_among(loss, AGGREGATIONS):
        raise not_lowered(c, "loss_type", f"it has losses for {', '.join(AGGREGATIONS)}")
    if level not in ("token", "sequence"):
        raise not_lowered(c, "importance_sampling_level", "ratios are those of tokens or of sequences")
    if loss == "cispo":
        return "CISPO"
    return "SequenceClip" if level == "sequence" else "Clip"


def _sizes(draft: Draft) -> None:
    c = draft.configuration
    response, context = c.size(COMPLETION), c.known(CONTEXT)
    if is_integer(context) and context > response:
        draft.put("dims.P", context - response, CONTEXT, COMPLETION)
    else:
        draft.put("dims.P", 512, note="the most tokens of a prompt, which TRL does not bound")
    draft.put("dims.R", response, COMPLETION)


def _loss(draft: Draft) -> None:
    c = draft.configuration
    rloo = _is_rloo(c)
    kind = "Clip" if rloo else _loss_kind(c)
    if draft.fields["algorithm"].value.startswith(OWN):
        draft.put("options.loss.kind", kind, *(() if rloo else ("loss_type", "importance_sampling_level")))
    if rloo:
        draft.put("options.loss.aggregation", "sequence-mean-token-sum")
    else:
        draft.take("options.loss.aggregation", "loss_type", one_of(AGGREGATIONS))
        if c.value("loss_type") == "dr_grpo":
            draft.put("options.loss.constant", "none", "loss_type")
    if kind == "CISPO":
        draft.put("options.loss.low", 1.0, "loss_type")
        draft.take("options.loss.high", "epsilon_high", _above_one)
    else:
        draft.take("options.loss.low", "epsilon", number)
        draft.take("options.loss.high", "epsilon" if c.value("epsilon_high") is None else "epsilon_high", number)
    if rloo:
        return
    if kind == "Clip" and c.known("delta") is not None:
        draft.take("options.loss.dual", "delta", number)
    draft.take("options.loss.kl", "beta", number)
    draft.take("options.loss.entropy", "entropy_coef", number)


def _above_one(value: Any) -> float:
    """CISPO's bound of a ratio, as that above 1."""
    if number(value) < 1:
        raise ValueError(f"{value} as the bound of a ratio leaves every token out")
    return float(value) - 1


def _run(draft: Draft) -> None:
    c = draft.configuration
    draft.put("backend", "ray")
    steps, updates = c.known(MAX_STEPS), _updates(c) * c.size(ITERATIONS)
    if is_integer(steps) and steps > 0:
        draft.put("steps", -(-steps // updates), MAX_STEPS)
    else:
        draft.put("steps", 1000, note="TRL counts epochs, whose steps depend on the rows of the data")
        draft.uses("num_train_epochs")
    if not draft.take("output", "output_dir", text):
        draft.put("output", "runs/trl", note="the folder of the run")
    draft.take("seed", "seed", integer)
    saves = c.known(SAVE_STEPS)
    if is_integer(saves) and saves > 0 and c.known("save_strategy") == "steps":
        draft.put("checkpoints.every", -(-saves // updates), SAVE_STEPS)
    limit = c.known("save_total_limit")
    if is_integer(limit) and limit > 0:
        draft.put("checkpoints.keep", limit, "save_total_limit")
    targets = c.known("report_to")
    if targets == "wandb" or (isinstance(targets, list) and "wandb" in targets):
        draft.put("wandb.project", "huggingface", "report_to")
        if c.known("run_name"):
            draft.take("wandb.name", "run_name", text)


def _data(draft: Draft) -> None:
    c = draft.configuration
    draft.put("data.source.kind", "Dataset")
    if c.known("dataset_name") is None:
        draft.put("data.source.path", "train.jsonl", note="the data set of the prompts")
    elif draft.take("data.source.path", "dataset_name", text):
        if c.known("dataset_config") is not None:
            draft.take("data.source.config", "dataset_config", text)
        draft.take("data.source.split", "dataset_train_split", text)
    draft.put("data.tokenizer.kind", "Pretrained")
    if not _path(draft, "data.tokenizer.path"):
        draft.put("data.tokenizer.path", "model", note="the folder of the model")
    draft.put("data.prompt.messages", "prompt", note='for prompts that are texts: text = "{prompt}"')


def _path(draft: Draft, field: str) -> bool:
    c = draft.configuration
    return c.known(MODEL) not in (None, MISSING) and draft.take(field, MODEL, text)


# -- roles


def _roles(draft: Draft) -> None:
    c = draft.configuration
    processes = c.size(PROCESSES)
    note = "all on one node" if processes > 8 else ""  # the GPUs of a usual node
    draft.put("deployment.pools.gpus.processes", [processes], PROCESSES, note=note)
    _actor(draft, processes)
    draft.put("deployment.roles.actor.pool", "gpus")
    draft.put("deployment.roles.actor.mesh.dp", processes, PROCESSES)
    if c.value("beta") != 0:
        draft.refer("reference.model", "actor.model", MODEL)
        if "actor.training.autocast" in draft.fields:
            draft.refer("reference.autocast", "actor.training.autocast")
        draft.take("reference.temperature", "temperature", number)
        draft.refer("reference.batching", "actor.batching", ROWS)
        draft.put("deployment.roles.reference.pool", "gpus")
        draft.put("deployment.roles.reference.mesh.dp", processes, PROCESSES)
    _reward(draft)


def _actor(draft: Draft, processes: int) -> None:
    c = draft.configuration
    if not _path(draft, "actor.model.path"):
        draft.put("actor.model.path", "model", note="the folder of the model")
    dtypes = {name: name for name in ("float32", "bfloat16", "float16")}
    draft.take("actor.model.dtype", "dtype", one_of(dtypes))
    if c.known("attn_implementation") is not None:
        draft.take("actor.model.attention", "attn_implementation", text)
    draft.put("actor.generation.max_tokens", c.size(COMPLETION), COMPLETION)
    draft.take("actor.generation.temperature", "temperature", number)
    draft.take("actor.generation.top_p", "top_p", number)
    if is_integer(c.known("top_k")):
        draft.take("actor.generation.top_k", "top_k", lambda value: max(0, value))
    _engine(draft, processes)
    optimizer = "actor.training.optimizer"
    draft.take(f"{optimizer}.learning_rate", "learning_rate", number)
    betas = ("adam_beta1", "adam_beta2")
    if all(isinstance(c.known(key), float) for key in betas):
        draft.put(f"{optimizer}.betas", [c.value(key) for key in betas], *betas)
    draft.take(f"{optimizer}.epsilon", "adam_epsilon", number)
    draft.take(f"{optimizer}.weight_decay", "weight_decay", number)
    draft.take(f"{optimizer}.clip_norm", "max_grad_norm", number)
    draft.take(f"{optimizer}.schedule", "lr_scheduler_type", one_of(SCHEDULES))
    arguments = c.known("lr_scheduler_kwargs")
    if c.known("lr_scheduler_type") == "cosine_with_min_lr" and isinstance(arguments, dict):
        ratio = arguments.get("min_lr_rate")
        if isinstance(ratio, float) and 0 <= ratio <= 1 and len(arguments) == 1:
            draft.put(f"{optimizer}.min_lr_ratio", ratio, "lr_scheduler_kwargs")
    if is_integer(c.known("warmup_steps")):
        draft.take(f"{optimizer}.warmup_steps", "warmup_steps", same)
    computes = next((name for flag, name in (("bf16", "bfloat16"), ("fp16", "float16")) if c.known(flag) is True), None)
    if computes is not None:
        draft.put("actor.training.autocast", computes, "bf16" if computes == "bfloat16" else "fp16")
    draft.take("actor.training.checkpointing", "gradient_checkpointing", bool)
    if c.known("fsdp"):
        draft.put("actor.training.sharding", "fsdp", "fsdp")
    draft.put("actor.batching.rows", c.size(ROWS), ROWS)
    if c.known("use_peft") is True:
        draft.take("actor.lora.rank", "lora_r", size)
        draft.take("actor.lora.alpha", "lora_alpha", number)
        draft.take("actor.lora.dropout", "lora_dropout", number)
        if c.known("lora_target_modules") is not None:
            draft.take("actor.lora.targets", "lora_target_modules", same)
        draft.uses("use_peft")


def _engine(draft: Draft, processes: int) -> None:
    c = draft.configuration
    draft.uses("use_vllm")
    if c.value("use_vllm") is not True:
        return
    draft.put("actor.generation.engine", "vllm", "use_vllm")
    if c.value("vllm_mode") == "server":
        draft.leave_out("vllm_mode", "the GPUs of the server are not part of the arguments; the actor samples")
        return
    draft.uses("vllm_mode")
    width = c.size(ENGINE_WIDTH)
    if width > 1 and processes % width == 0:
        draft.put("actor.generation.engine_tp", width, ENGINE_WIDTH)


def _reward(draft: Draft) -> None:
    c = draft.configuration
    model = "reward_model_name_or_path"
    if c.known(model) is not None:
        draft.put("roles.reward", "hfdsl.rl.workers:RewardModel", model)
        if not draft.take("reward.model.path", model, text):
            draft.put("reward.model.path", "reward_model", note="the folder of the reward model")
        draft.put("deployment.roles.reward.pool", "gpus")
        return
    draft.put("roles.reward", "hfdsl.rl.workers:Verifier")
    draft.put("reward.function", "rewards:score", "reward_funcs", note="score(response, task) of your own")
    draft.leave_out("reward_funcs", "a verifier of hfdsl calls score(response, task) with a row of the data")
    draft.refer("reward.tokenizer", "data.tokenizer", MODEL)
    draft.put("deployment.pools.judges.processes", [1])
    draft.put("deployment.pools.judges.gpu", value=False)
    draft.put("deployment.roles.reward.pool", "judges")
