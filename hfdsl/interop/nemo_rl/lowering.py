"""A run of NeMo-RL's GRPO as a run of hfdsl: which dataflow it is, its loss, data and steps.

The sizes are those of ``nemo_rl.units``, whose example of 32 prompts x 16 responses and one global batch of 512 rows is
``B = 32``, ``group = 16`` and ``updates = 1``.
"""

from __future__ import annotations

from typing import Any

from hfdsl.interop.library_tables import table
from hfdsl.interop.lowered_parts import put_lag, put_lengths
from hfdsl.interop.lowering import Draft, Lowered, not_lowered, number, one_of, same, text, unknown_size
from hfdsl.interop.nemo_rl.lowered_roles import lower_roles
from hfdsl.interop.nemo_rl.units import (
    ASYNC,
    COLOCATED,
    FILTER,
    GLOBAL,
    LONGEST,
    NEW_TOKENS,
    PROMPTS,
    SAMPLES,
    VLLM,
    estimator,
    get,
    on,
    rows,
)
from hfdsl.interop.settings import Configuration, NotKnown, is_integer

OWN, READY = "hfdsl.rl.policy_gradient", "hfdsl.rl.dataflows"
ESTIMATOR, BASELINE = "grpo.adv_estimator.name", "grpo.adv_estimator.minus_baseline"
KL, KL_TYPE, KL_REWARD = (
    "loss_fn.reference_policy_kl_penalty",
    "loss_fn.reference_policy_kl_type",
    "loss_fn.use_kl_in_reward",
)
PER_TOKEN, PER_SEQUENCE = "loss_fn.token_level_loss", "loss_fn.sequence_level_importance_ratios"
CISPO, NO_RATIO, ON_POLICY = "loss_fn.use_cispo", "loss_fn.disable_ppo_ratio", "loss_fn.force_on_policy_ratio"
CORRECTED, TRUNCATED = "loss_fn.use_importance_sampling_correction", "loss_fn.truncated_importance_sampling_type"
HIGHEST, LOWEST = (f"loss_fn.truncated_importance_sampling_ratio{end}" for end in ("", "_min"))
AGE, MOST_STEPS, PROCESSOR = "grpo.async_grpo.max_trajectory_age_steps", "grpo.max_num_steps", "data.default.processor"
TURNS, GYM, DUAL = "grpo.max_rollout_turns", "env.should_use_nemo_gym", "loss_fn.ratio_clip_c"
ADVANTAGES = {
    (True, True): "normalized-leave-one-out",
    (True, False): "group",
    (False, True): "leave-one-out",
    (False, False): "centered",
}
"""Advantages by whether rewards are normalized, and whether a response is left out of its baseline."""

ENDLESS = 100_000
"""So many steps are no plan but a bound that no run reaches; ``grpo_math_1B.yaml`` has a million."""

SWITCHED = (
    "checkpointing", "data_plane", "grpo.async_grpo", "grpo.reward_scaling", "grpo.reward_shaping",
    "logger.mlflow_enabled", "logger.swanlab_enabled", "logger.wandb_enabled", "logger.tensorboard_enabled",
    "policy.draft", "policy.dtensor_cfg", "policy.dtensor_cfg.lora_cfg", "policy.dynamic_batching",
    "policy.megatron_cfg", "policy.megatron_cfg.fp8_cfg", "policy.megatron_cfg.peft", "policy.sequence_packing",
)  # fmt: skip  # tables with a switch
"""Tables that a key ``enabled`` within them switches, or one beside them that ends with ``_enabled``."""

CHOSEN = "hfdsl chooses it"
REASONS = {
    "grpo.max_num_epochs": "a run of hfdsl takes steps, and those of an epoch depend on the rows of the data",
    "grpo.max_val_samples": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "grpo.val_batch_size": "[evaluation] of hfdsl takes its rows at once",
    "grpo.val_period": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "grpo.val_at_start": "hfdsl evaluates before the first step where there is an [evaluation]",
    "grpo.val_at_end": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "grpo.seq_logprob_error_threshold": "losses of hfdsl bound the ratio of trainer and engine by a correction",
    "grpo.batch_multiplier": "the ready-made dataflows 'dapo' and 'dapo_round' filter groups",
    "grpo.dynamic_sampling_max_gen_batches": "the ready-made dataflows 'dapo' and 'dapo_round' filter groups",
    "grpo.reward_shaping": "scores are those of the role 'reward'; 'dapo' has a penalty for length",
    "grpo.reward_scaling": "scores are those of the role 'reward'",
    "grpo.overlong_filtering": "a response that is cut off trains as others do",
    "grpo.skip_reference_policy_logprobs_calculation": "a loss without a KL term has no reference in hfdsl",
    "grpo.normalize_rewards": "grpo.adv_estimator has the same setting",
    "grpo.use_leave_one_out_baseline": "grpo.adv_estimator has the same setting",
    "checkpointing": "hfdsl keeps the last checkpoints, with all states",
    "policy.megatron_cfg": "hfdsl does not train with Megatron",
    "policy.dtensor_cfg": "hfdsl chooses it for FSDP2",
    "policy.sequence_packing": CHOSEN,
    "policy.dynamic_batching": CHOSEN,
    "policy.make_sequence_length_divisible_by": CHOSEN,
    "policy.generation": "the engine of hfdsl has no such setting",
    "policy.generation.colocated": "the pools of a deployment say where roles run",
    "policy.generation_batch_size": CHOSEN,
    "policy.logprob_chunk_size": "hfdsl computes log-probs of whole micro-batches",
    "policy.tokenizer": "the tokenizer of hfdsl has no such setting",
    "policy.optimizer.name": "hfdsl's optimizer is AdamW",
    "data": "data.source and data.prompt of hfdsl name rows and their fields",
    "data.validation": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "data.shuffle": "hfdsl draws a new order of the rows for every epoch",
    "env": "a verifier of hfdsl calls score(response, task) with a row of the data",
    "logger": "hfdsl writes metrics.jsonl, and to Weights & Biases, MLflow and TensorBoard",
    "cluster": "a run of hfdsl joins the cluster that Ray has",
    "data_plane": "hfdsl sends the columns of a step from worker to worker",
}
"""Why a setting is left out, by its key or by the table that it is in."""


def lower(c: Configuration) -> Lowered:
    """The run of hfdsl that a configuration of NeMo-RL's GRPO describes.

    Raises:
        NotLowered: HF981 for a step that no dataflow of hfdsl has, HF982 if a size is not known.
    """
    library = table("nemo-rl")
    draft = Draft(c, usual=library.engines[library.default])
    try:
        _demand_one_response(c)
        _algorithm(draft)
        _loss(draft)
        _steps(draft)
        put_lengths(draft, LONGEST, NEW_TOKENS, "data.max_input_seq_length")
        _data(draft)
        _metrics(draft)
        lower_roles(draft, reference=has_reference(c))
        _switched_off(draft)
        return draft.lowered(REASONS)
    except NotKnown as error:
        raise unknown_size(c, error) from None


def _switched_off(draft: Draft) -> None:
    """Tables that are switched off, whose keys have no effect."""
    c = draft.configuration
    for table_name in SWITCHED:
        switch = table_name if table_name.endswith("_enabled") else f"{table_name}.enabled"
        if c.known(switch) is False:
            inside = f"{switch.removesuffix('_enabled').removesuffix('.enabled')}."
            draft.uses(*(key for key in c.explicit if key.startswith(inside)))


def _demand_one_response(c: Configuration) -> None:
    """Refuse rollouts of several turns or with images."""
    if get(c, TURNS, 1) != 1:
        raise not_lowered(c, TURNS, "its rollouts have one response")
    if on(c, GYM):
        raise not_lowered(c, GYM, "its rollouts have one response, and no tools")
    if "vlm" in str(get(c, PROCESSOR, "")):
        raise not_lowered(c, PROCESSOR, "its prompts are texts")


# -- the dataflow


def has_reference(c: Configuration) -> bool:
    """Whether the loss has a KL term; one in the rewards is of an estimator without a counterpart."""
    return not on(c, KL_REWARD) and get(c, KL, 0.01) != 0


def _updates(c: Configuration) -> int:
    total, batch = rows(c), c.size(GLOBAL)
    if total % batch:
        raise not_lowered(c, GLOBAL, f"{total} rows are not whole global batches of {batch}")
    return total // batch


def _advantages(draft: Draft) -> str:
    c = draft.configuration
    name = estimator(c)
    if name == "reinforce_plus_plus":
        if on(c, KL_REWARD):
            raise not_lowered(c, KL_REWARD, "its KL terms in rewards add up over a response")
        draft.uses(ESTIMATOR, BASELINE)
        return "centered-returns" if get(c, BASELINE, True) else "returns"
    if name != "grpo":
        raise not_lowered(c, ESTIMATOR, "no dataflow of it has these advantages")
    above = "grpo.adv_estimator" if c.has(ESTIMATOR) else "grpo"
    normalized, leave_one_out = f"{above}.normalize_rewards", f"{above}.use_leave_one_out_baseline"
    draft.uses(ESTIMATOR, normalized, leave_one_out)
    return ADVANTAGES[bool(c.value(normalized)), bool(c.value(leave_one_out))]


def _kind(c: Configuration) -> str:
    if on(c, NO_RATIO):
        raise not_lowered(c, NO_RATIO, "its losses of several optimizer steps have a ratio")
    if on(c, CISPO):
        return "CISPO"
    return "SequenceClip" if on(c, PER_SEQUENCE) else "Clip"


def _algorithm(draft: Draft) -> None:
    c = draft.configuration
    kind, advantages, reference, queued = _kind(c), _advantages(draft), has_reference(c), on(c, ASYNC)
    draft.uses(ASYNC, KL, KL_REWARD, CISPO, NO_RATIO, PER_SEQUENCE)
    if not on(c, FILTER):
        draft.uses(FILTER, "grpo.batch_multiplier", "grpo.dynamic_sampling_max_gen_batches")
    else:
        draft.leave_out(FILTER, "the ready-made dataflows 'dapo' and 'dapo_round' filter groups")
    ready = {
        ("Clip", "group", True, False): "grpo:grpo",
        ("Clip", "group", False, False): "grpo:grpo_without_reference",
        ("Clip", "centered", False, False): "dr_grpo:dr_grpo",
        ("SequenceClip", "group", False, False): "gspo:gspo",
        ("Clip", "group", True, True): "asynchronous:async_grpo",
    }.get((kind, advantages, reference, queued))
    general = f"{OWN}:{'async_without_critic' if queued else 'without_critic'}"
    name = general if ready is None else f"{READY}.{ready}"
    draft.put("algorithm", name, ESTIMATOR if c.has(ESTIMATOR) else PROMPTS, KL, ASYNC)
    draft.put("dims.B", c.size(PROMPTS), PROMPTS)
    draft.put("options.group", c.size(SAMPLES), SAMPLES)
    draft.put("options.updates", _updates(c), GLOBAL, PROMPTS, SAMPLES)
    if ready is None:
        keys = (f"grpo.adv_estimator.{part}" for part in ("normalize_rewards", "use_leave_one_out_baseline"))
        draft.put("options.advantages", advantages, *(key for key in (ESTIMATOR, *keys) if c.has(key)))
        draft.put("options.loss.kind", kind, *(key for key in (CISPO, PER_SEQUENCE) if c.has(key)))
    if queued:
        put_lag(draft, AGE)
        in_flight = "grpo.async_grpo.in_flight_weight_updates"
        if on(c, in_flight):
            draft.leave_out(in_flight, "a response of hfdsl has the weights of one version")


def _loss(draft: Draft) -> None:
    c = draft.configuration
    kind = _kind(c)
    per_token = bool(get(c, PER_TOKEN, True))
    draft.put("options.loss.aggregation", "token-mean" if per_token else "sequence-mean-token-mean", PER_TOKEN)
    for end, key in (("low", "loss_fn.ratio_clip_min"), ("high", "loss_fn.ratio_clip_max")):
        draft.take(f"options.loss.{end}", key, number)
    if kind == "Clip" and c.known(DUAL) is not None:
        draft.take("options.loss.dual", DUAL, number)
    if has_reference(c):
        draft.take("options.loss.kl", KL, number)
        draft.take("options.loss.estimator", KL_TYPE, one_of({name: name for name in ("k1", "k2", "k3")}))
    else:
        draft.put("options.loss.kl", 0.0, KL)
    if on(c, ON_POLICY):
        draft.uses(ON_POLICY)  # one optimizer step, whose ratio is 1
    _correction(draft)


def _correction(draft: Draft) -> None:
    """The loss's correction for the log-probs of an engine, which are not quite the trainer's."""
    c = draft.configuration
    if not on(c, CORRECTED):
        if c.has(CORRECTED):
            draft.leave_out(CORRECTED, "losses of hfdsl weigh tokens by trainer / engine, truncated at 2")
        return
    draft.uses(CORRECTED)
    kind = get(c, TRUNCATED)
    if kind not in ("tis", "icepop"):
        draft.leave_out(TRUNCATED, "losses of hfdsl truncate or mask the ratio of trainer and engine by token")
        return
    draft.put("options.loss.correction.outside", "truncate" if kind == "tis" else "mask", TRUNCATED)
    draft.take("options.loss.correction.high", HIGHEST, number)
    if get(c, LOWEST) is not None:
        draft.take("options.loss.correction.low", LOWEST, number)


# -- steps, data, metrics


def _steps(draft: Draft) -> None:
    c = draft.configuration
    draft.put("backend", "ray")
    steps = c.known(MOST_STEPS)
    if is_integer(steps) and 0 < steps < ENDLESS:
        draft.put("steps", steps, MOST_STEPS)
    else:
        draft.put("steps", 1000, note="NeMo-RL counts epochs, whose steps depend on the rows of the data")
        draft.uses(MOST_STEPS)
    if not (c.has("checkpointing.checkpoint_dir") and draft.take("output", "checkpointing.checkpoint_dir", text)):
        draft.put("output", "runs/nemo-rl", note="the folder of the run")
    if is_integer(c.known("grpo.seed")):
        draft.take("seed", "grpo.seed", same)
    if c.known("checkpointing.enabled") is True:
        draft.uses("checkpointing.enabled")
        for name, key in (("every", "checkpointing.save_period"), ("keep", "checkpointing.keep_top_k")):
            if is_integer(count := c.known(key)) and count > 0:
                draft.put(f"checkpoints.{name}", count, key)


def _metrics(draft: Draft) -> None:
    c = draft.configuration
    for name, needed, fields in (
        ("wandb", "project", {"project": "project", "name": "name"}),
        (
            "mlflow",
            "experiment_name",
            {"experiment": "experiment_name", "name": "run_name", "tracking": "tracking_uri"},
        ),
    ):
        switch = f"logger.{name}_enabled"
        if c.known(switch) is True and c.known(f"logger.{name}.{needed}"):
            draft.uses(switch)
            for field, key in fields.items():
                if c.known(f"logger.{name}.{key}"):
                    draft.take(f"{name}.{field}", f"logger.{name}.{key}", text)
    if c.known("logger.tensorboard_enabled") is True:
        draft.put("tensorboard", True, "logger.tensorboard_enabled")


def _data(draft: Draft) -> None:
    c = draft.configuration
    draft.put("data.source.kind", "Dataset")
    path, field = "data.train.data_path", "data.train.input_key"
    if not (c.known(path) is not None and draft.take("data.source.path", path, text)):
        draft.put("data.source.path", "train.jsonl", note="the data set of the prompts")
        draft.leave_out("data.train.dataset_name" if c.has("data.train.dataset_name") else "data.train",
                        "a source of hfdsl is a file or a data set of the Hugging Face hub")  # fmt: skip
    draft.put("data.tokenizer.kind", "Pretrained")
    name = next((key for key in ("policy.tokenizer.name", "policy.model_name") if c.known(key)), None)
    if name is None or not draft.take("data.tokenizer.path", name, text):
        draft.put("data.tokenizer.path", "model", note="the folder of the model")
    chosen: Any = c.known(field)
    if isinstance(chosen, str) and chosen.isidentifier():
        draft.put("data.prompt.text", f"{{{chosen}}}", field)
        draft.put("data.prompt.chat", value=True)
    else:
        draft.put("data.prompt.messages", "prompt", note='for prompts that are texts: text = "{prompt}"')
    draft.uses(COLOCATED, f"{VLLM}.max_model_len")
