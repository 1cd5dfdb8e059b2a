"""A run of verl as a run of hfdsl: which dataflow it is, and where its roles run.

The rows of a step are those of ``verl.units``. Ranks that share rows, by tensor, sequence or context parallelism, are
ranks along ``tp``; with that every data-parallel rank has the rows that verl gives it.
"""

from __future__ import annotations

from typing import Any

from hfdsl.interop.lowered_parts import put_lag
from hfdsl.interop.lowering import Draft, Lowered, is_among, not_lowered, number, one_of, same, text, unknown_size
from hfdsl.interop.settings import Configuration, NotKnown, is_integer
from hfdsl.interop.verl.lowered_roles import lower_roles, require_whole_copies
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MINI,
    MINI,
    MODE,
    MODEL,
    REF,
    ROLLOUT,
    SAMPLES,
    SYNC_STEPS,
    TRAIN,
    padded_rows,
    rows,
    training_roles,
    updates_in_parts,
    uses_reference,
)

ESTIMATOR, STD, KL_LOSS = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo", f"{ACTOR}.use_kl_loss"
KL_REWARD, KL_COEFFICIENT = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"
LOSS_MODE, EPOCHS = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.ppo_epochs"
AGGREGATION, CORRECTION = f"{ACTOR}.loss_agg_mode", "algorithm.rollout_correction.rollout_is"
TOTAL_STEPS = "trainer.total_training_steps"

OWN, READY = "hfdsl.rl.policy_gradient", "hfdsl.rl.dataflows"
ADVANTAGES = {"grpo": "group", "rloo": "leave-one-out", "reinforce_plus_plus": "returns"}
LOSSES = {"vanilla": "Clip", "gspo": "SequenceClip", "cispo": "CISPO"}
AGGREGATIONS = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean-token-mean",
    "seq-mean-token-sum": "sequence-mean-token-sum",
    "seq-mean-token-sum-norm": "sequence-mean-token-sum",
}
ESTIMATORS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}

REASONS = {
    "data.shuffle": "hfdsl draws a new order of the rows for every epoch",
    "data.filter_overlong_prompts": 'a prompt that is too long ends a run of hfdsl; data.on_bad = "skip" leaves it out',
    "data.truncation": 'a prompt that is too long ends a run of hfdsl; data.on_bad = "skip" leaves it out',
    "data.val_files": "[evaluation] of hfdsl takes the number of its rows, which only the files say",
    "data.val_batch_size": "[evaluation] of hfdsl takes its rows at once",
    "trainer.test_freq": "[evaluation] of hfdsl takes the number of its rows, which only the files say",
    "trainer.val_before_train": "hfdsl evaluates before the first step where there is an [evaluation]",
    "trainer.val_only": "hfdsl has no run without steps",
    "trainer.balance_batch": "hfdsl sorts rows by length within the micro-batches of a rank",
    "trainer.logger": "hfdsl writes metrics.jsonl, and to Weights & Biases, MLflow and TensorBoard",
    "trainer.project_name": "only Weights & Biases has projects",
    "trainer.experiment_name": "a run of hfdsl has the name of its folder",
    "trainer.resume_mode": "hfdsl train --auto-resume continues a run, or starts it",
    "trainer.critic_warmup": "both models learn from the first step on",
    f"{MODEL}.use_remove_padding": "micro-batches of rows are padded in hfdsl; those of tokens are packed",
    f"{MODEL}.trust_remote_code": "hfdsl executes no code of a model's folder",
    f"{ROLLOUT}.gpu_memory_utilization": "the engine's cache has generation.cache_tokens in hfdsl",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "log-probs of the actor have the micro-batches of its updates",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz": "log-probs of the actor have the micro-batches of its updates",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu": "log-probs of the actor have the micro-batches of its updates",
    f"{ROLLOUT}.load_format": "an engine of hfdsl gets its weights from the actor",
    f"{ROLLOUT}.free_cache_engine": "an engine of hfdsl sleeps while the models train",
    f"{ROLLOUT}.mode": "an engine of hfdsl is a process beside each rank",
    f"{ROLLOUT}.calculate_log_probs": "a rollout of hfdsl has the engine's log-probs",
    ROLLOUT: "the engine of hfdsl has no such setting",
    f"{ACTOR}.fsdp_config": "hfdsl chooses it for FSDP2",
    f"{REF}.fsdp_config": "hfdsl chooses it",
    f"{ACTOR}.megatron": "hfdsl does not train with Megatron",
    f"{REF}.megatron": "hfdsl does not train with Megatron",
}
"""Why a setting is left out, by its key or by the table that it is in."""


def lower(c: Configuration) -> Lowered:
    """The run of hfdsl that a configuration of verl describes.

    Raises:
        NotLowered: HF981 for a step that no dataflow of hfdsl has, HF982 if a size is not known.
    """
    try:
        return _lower(c)
    except NotKnown as error:
        raise unknown_size(c, error) from None


def _lower(c: Configuration) -> Lowered:
    draft = Draft(c)
    _algorithm(draft)
    draft.put("backend", "ray")
    _steps(draft)
    draft.put("dims.B", c.size(TRAIN), TRAIN)
    draft.put("dims.P", c.size("data.max_prompt_length"), "data.max_prompt_length")
    draft.put("dims.R", c.size("data.max_response_length"), "data.max_response_length")
    _loss(draft)
    _data(draft)
    lower_roles(draft, reference=has_reference(c))
    _metrics(draft)
    return draft.lowered(REASONS)


# -- the dataflow


def _updates(c: Configuration, mini: str) -> int:
    """The mini-batches of a step."""
    for _, split in training_roles(c):
        require_whole_copies(c, split)
    mini_batch_rows = c.size(mini) * c.size(SAMPLES)
    if padded_rows(c) != rows(c) or rows(c) % mini_batch_rows:
        raise not_lowered(
            c, mini, f"{rows(c)} rows are not whole mini-batches of {mini_batch_rows}, and hfdsl adds no rows"
        )
    return updates_in_parts(c) * rows(c) // mini_batch_rows


def has_reference(c: Configuration) -> bool:
    """Whether the run has a reference; group advantages of hfdsl are of scores, without a KL term in the rewards."""
    return bool(c.value(KL_LOSS)) if c.value(ESTIMATOR) == "grpo" else uses_reference(c)


def _algorithm(draft: Draft) -> None:
    c = draft.configuration
    estimator, mode = c.value(ESTIMATOR), c.value(MODE)
    draft.uses(ESTIMATOR, STD, KL_LOSS, KL_REWARD, LOSS_MODE, MODE, "critic.enable")
    if c.known(f"{ROLLOUT}.multi_turn.enable"):
        raise not_lowered(c, f"{ROLLOUT}.multi_turn.enable", "its rollouts have one response")
    if c.known("distillation.enabled"):
        raise not_lowered(c, "distillation.enabled", "its 'distillation' has one teacher, and no rewards")
    if estimator not in (*ADVANTAGES, "gae", "remax"):
        raise not_lowered(c, ESTIMATOR, "no dataflow of it has these advantages")
    if not is_among(c.value(LOSS_MODE), LOSSES):
        raise not_lowered(c, LOSS_MODE, f"it has losses for {', '.join(LOSSES)}")
    if mode not in ("sync", "separate_async"):
        raise not_lowered(c, MODE, "a queue of hfdsl has a sampler with GPUs of its own")
    if c.known("algorithm.filter_groups.enable"):
        draft.leave_out(
            "algorithm.filter_groups.enable", "the ready-made dataflows 'dapo' and 'dapo_round' filter groups"
        )
    if estimator == "gae":
        name = _with_critic(draft)
    elif estimator == "remax":
        name = _remax(draft)
    else:
        name = _without_critic(draft)
    if mode == "separate_async":
        name = _with_queue(draft, name)
    draft.put("algorithm", name, ESTIMATOR, KL_LOSS, KL_REWARD, MODE)


def _without_critic(draft: Draft) -> str:
    c = draft.configuration
    estimator, loss, epochs = c.value(ESTIMATOR), LOSSES[c.value(LOSS_MODE)], c.size(EPOCHS)
    normalized, reference = bool(c.value(STD)), has_reference(c)
    draft.put("options.group", c.size(SAMPLES), SAMPLES)
    draft.put("options.updates", _updates(c, MINI), TRAIN, MINI, SYNC_STEPS)
    if estimator == "grpo":
        if c.value(KL_REWARD):
            draft.leave_out(KL_REWARD, "group advantages of hfdsl are those of scores; a KL term is one of the loss")
        shape = (loss, normalized, reference, epochs)
        ready = {
            ("Clip", True, True, 1): "grpo:grpo",
            ("Clip", True, False, 1): "grpo:grpo_without_reference",
            ("Clip", False, False, 1): "dr_grpo:dr_grpo",
            ("SequenceClip", True, False, 1): "gspo:gspo",
        }
        if shape in ready:
            draft.uses(EPOCHS)
            return f"{READY}.{ready[shape]}"
    draft.put("options.advantages", "centered" if estimator == "grpo" and not normalized else ADVANTAGES[estimator],
              ESTIMATOR, STD)  # fmt: skip
    draft.put("options.epochs", epochs, EPOCHS)
    if estimator != "grpo" and c.value(KL_REWARD):
        draft.take("options.kl", KL_COEFFICIENT, number)
    return f"{OWN}:without_critic"


def _with_critic(draft: Draft) -> str:
    c = draft.configuration
    updates, epochs = _updates(c, MINI), c.size(EPOCHS)
    of_critic, critic_epochs = _updates(c, CRITIC_MINI), c.size("critic.ppo_epochs")
    draft.put("options.epochs", epochs, EPOCHS)
    draft.put("options.mini_batches", updates, TRAIN, MINI, SYNC_STEPS)
    draft.take("options.gamma", "algorithm.gamma", number)
    draft.take("options.lam", "algorithm.lam", number)
    if c.value(KL_REWARD):
        draft.take("options.kl", KL_COEFFICIENT, number)
    draft.put("options.value_loss.clip", number(c.value("critic.cliprange_value")), "critic.cliprange_value")
    is_plain = c.value(KL_REWARD) and not c.value(KL_LOSS) and c.value(LOSS_MODE) == "vanilla"
    if is_plain and (updates, epochs) == (of_critic, critic_epochs) and c.size(SAMPLES) == 1:
        draft.uses(SAMPLES, CRITIC_MINI, "critic.ppo_epochs")
        return f"{READY}.ppo:ppo"
    draft.put("options.group", c.size(SAMPLES), SAMPLES)
    draft.put("options.critic_mini_batches", of_critic, TRAIN, CRITIC_MINI)
    draft.put("options.critic_epochs", critic_epochs, "critic.ppo_epochs")
    return f"{OWN}:with_critic"


def _remax(draft: Draft) -> str:
    c = draft.configuration
    if _updates(c, MINI) * c.size(EPOCHS) > 1:
        raise not_lowered(c, MINI, "its 'remax' makes one optimizer step a step")
    if not c.value(KL_REWARD) or c.value(KL_LOSS) or c.size(SAMPLES) > 1 or c.value(LOSS_MODE) != "vanilla":
        raise not_lowered(c, ESTIMATOR, "its 'remax' has one response to a prompt, and a KL term in the rewards")
    draft.uses(MINI, EPOCHS, SAMPLES)
    draft.take("options.kl", KL_COEFFICIENT, number)
    return f"{READY}.remax:remax"


def _with_queue(draft: Draft, name: str) -> str:
    """The dataflow with a queue, if there is one."""
    c = draft.configuration
    queued = {f"{READY}.grpo:grpo": "async_grpo", f"{READY}.ppo:ppo": "async_ppo"}
    if name not in queued:
        raise not_lowered(c, MODE, "its dataflows with a queue have a reference, and one epoch without a critic")
    limit, how = "trainer.v1.sampler.max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_strategy"
    put_lag(draft, limit)
    draft.take("options.late", how, one_of({"drop": "drop", "wait": "wait"}))
    draft.uses(SYNC_STEPS)
    return f"{READY}.asynchronous:{queued[name]}"


def _loss(draft: Draft) -> None:
    c = draft.configuration
    kind = "Reinforce" if c.value(ESTIMATOR) == "remax" else LOSSES[c.value(LOSS_MODE)]
    if draft.fields["algorithm"].value.startswith(OWN):
        draft.put("options.loss.kind", kind, LOSS_MODE)
    draft.take("options.loss.aggregation", AGGREGATION, one_of(AGGREGATIONS))
    if c.known(AGGREGATION) == "seq-mean-token-sum-norm" and c.known(f"{ACTOR}.loss_scale_factor") is None:
        draft.put("options.loss.constant", "none", AGGREGATION)
    if kind != "Reinforce":
        draft.take("options.loss.low", f"{ACTOR}.clip_ratio_low", number)
        draft.take("options.loss.high", f"{ACTOR}.clip_ratio_high", number)
    if kind == "Clip":
        draft.take("options.loss.dual", f"{ACTOR}.clip_ratio_c", number)
    draft.take("options.loss.entropy", f"{ACTOR}.entropy_coeff", number)
    if c.value(KL_LOSS):
        draft.take("options.loss.kl", f"{ACTOR}.kl_loss_coef", number)
        draft.take("options.loss.estimator", f"{ACTOR}.kl_loss_type", one_of(ESTIMATORS))
    elif kind != "Reinforce":
        draft.put("options.loss.kl", 0.0, KL_LOSS)
    if c.known(CORRECTION) in ("token", "sequence"):
        draft.put("options.loss.correction.level", c.value(CORRECTION), CORRECTION)
        draft.take("options.loss.correction.high", "algorithm.rollout_correction.rollout_is_threshold", number)
    else:
        draft.leave_out(CORRECTION, "losses of hfdsl weigh tokens by trainer / engine, truncated at 2")


# -- steps, data, metrics


def _steps(draft: Draft) -> None:
    draft.uses("trainer.use_v1", "trainer.total_epochs", "actor_rollout_ref.hybrid_engine")
    total = draft.configuration.known(TOTAL_STEPS)
    if is_integer(total) and total > 0:
        draft.put("steps", total, TOTAL_STEPS)
    else:
        draft.put("steps", 1000, note="verl counts epochs, whose steps depend on the rows of the data")
    if not draft.take("output", "trainer.default_local_dir", text):
        draft.put("output", "runs/verl", note="the folder of the run")


def _data(draft: Draft) -> None:
    c = draft.configuration
    draft.put("data.source.kind", "Dataset", "data.train_files")
    if not draft.take("data.source.path", "data.train_files", _one_file):
        draft.put("data.source.path", "train.parquet", note="the file of the rows")
    draft.put("data.tokenizer.kind", "Pretrained", f"{MODEL}.path")
    tokenizer = next((key for key in ("data.tokenizer", f"{MODEL}.tokenizer_path") if c.known(key)), f"{MODEL}.path")
    if not draft.take("data.tokenizer.path", tokenizer, text):
        draft.put("data.tokenizer.path", "model", note="the folder of the model")
    draft.take("data.prompt.messages", "data.prompt_key", text)
    if is_integer(c.known("data.seed")):
        draft.take("data.seed", "data.seed", same)


def _one_file(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise ValueError("a source of hfdsl is one file, or a pattern of files such as data/*.parquet")  # noqa: TRY004
    return text(value)


def _metrics(draft: Draft) -> None:
    c = draft.configuration
    loggers = c.known("trainer.logger")
    if isinstance(loggers, list) and "wandb" in loggers:
        draft.take("wandb.project", "trainer.project_name", text)
        draft.take("wandb.name", "trainer.experiment_name", text)
        draft.uses("trainer.logger")
    for name, key in (("every", "trainer.save_freq"), ("keep", "trainer.max_actor_ckpt_to_keep")):
        count = c.known(key)
        if is_integer(count) and count > 0:
            draft.put(f"checkpoints.{name}", count, key)
