"""A run of OpenRLHF's trainer as a run of hfdsl: which dataflow it is, its loss, data and steps.

The sizes are those of ``openrlhf.units``, whose example of 64 prompts x 8 samples in train batches of 128 is
``B = 64``, ``group = 8`` and ``updates = 4``.
"""

from __future__ import annotations

from typing import Any

from hfdsl.interop.lowered_parts import put_lag, put_lengths
from hfdsl.interop.lowering import Draft, Lowered, integer, is_among, not_lowered, number, one_of, text, unknown_size
from hfdsl.interop.openrlhf.lowered_roles import EPOCHS, lower_roles
from hfdsl.interop.openrlhf.units import (
    ASYNC,
    ESTIMATOR,
    GENERATED,
    KL,
    PROMPTS,
    SAMPLES,
    TRAIN,
    is_set,
    prompts,
    samples,
    uses_reference,
)
from hfdsl.interop.settings import Configuration, NotKnown, is_integer

OWN, READY = "hfdsl.rl.policy_gradient", "hfdsl.rl.dataflows"
KL_LOSS, KL_TYPE = "algo.kl.use_loss", "algo.kl.estimator"
GAMMA, LAMBDA, UNSCALED = "algo.advantage.gamma", "algo.advantage.lambd", "algo.advantage.no_std_norm"
LOSS, CLIP, CLIPS, DUAL = "actor.policy_loss_type", "actor.eps_clip", "actor.eps_clip_low_high", "actor.dual_clip"
CORRECTED, BOUNDS, OUTSIDE = (f"algo.advantage.is_correction_{name}" for name in ("enable", "threshold", "type"))
FILTER, AGENT, IMAGES = "algo.dynamic_filtering_enable", "train.agent_func_path", "data.max_images_per_prompt"
QUEUE, PARTIAL, INPUT = "train.async_queue_size", "train.partial_rollout_enable", "data.input_key"
ADVANTAGES = {
    "group_norm": "group",
    "dr_grpo": "centered",
    "rloo": "leave-one-out",
    "reinforce": "returns",
    "reinforce_baseline": "centered-returns",
}
WITH_KL = ("reinforce", "reinforce_baseline")
"""Estimators whose advantages in hfdsl are those of rewards with a KL term, as OpenRLHF has them."""

SHAPED = "scores are those of the role 'reward'"
NORMALIZED = "returns of hfdsl are normalized over the batch"
REASONS = {
    "ckpt": "hfdsl keeps the last checkpoints, with all states, and exports a model by hfdsl export",
    "ckpt.load_enable": "hfdsl train --auto-resume continues a run, or starts it",
    "data": "data.source and data.prompt of hfdsl name rows and their fields",
    "data.label_key": "a verifier of hfdsl gets all fields of a row",
    "data.max_samples": "a source of hfdsl is read to its end",
    "ds": "hfdsl chooses it for FSDP2",
    "ds.adam_offload": "hfdsl offloads all idle states of a role, or none",
    "ds.zero_stage": "FSDP2 shards parameters, gradients and optimizer states",
    "eval": "[evaluation] of hfdsl takes the number of its rows, which only the data set says",
    "logger": "hfdsl writes metrics.jsonl, and to Weights & Biases, MLflow and TensorBoard",
    "reward.normalize_enable": SHAPED,
    "reward.clip_range": SHAPED,
    "reward.overlong_buffer_len": f"{SHAPED}; 'dapo' has a penalty for length",
    "reward.overlong_penalty_factor": f"{SHAPED}; 'dapo' has a penalty for length",
    "reward.stop_properly_penalty_coef": SHAPED,
    "reward.offload": "an idle reward model stays on its GPUs",
    "train.num_episodes": "a run of hfdsl takes steps, and those of an episode depend on the rows of the data",
    "algo.kl.target": "the ready-made dataflow 'ppo_adaptive_kl' adapts the coefficient",
    "algo.dynamic_filtering_range": "the ready-made dataflows 'dapo' and 'dapo_round' filter groups",
    GAMMA: "returns of a critic's dataflow alone are discounted",
    "vllm": "the engine of hfdsl has no such setting",
    "vllm.enable_sleep": "an engine of hfdsl sleeps while the models train",
}
"""Why a setting is left out, by its key or by the table that it is in."""


def lower(c: Configuration) -> Lowered:
    """The run of hfdsl that the options of OpenRLHF's trainer describe.

    Raises:
        NotLowered: HF981 for a step that no dataflow of hfdsl has, HF982 if a size is not known.
    """
    try:
        draft = Draft(c)
        if is_set(c, AGENT):
            raise not_lowered(c, AGENT, "its rollouts have one response, and no agent")
        if is_integer(images := c.value(IMAGES)) and images > 0:
            raise not_lowered(c, IMAGES, "its prompts are texts")
        draft.put("dims.B", prompts(c), PROMPTS, *((GENERATED,) if is_set(c, GENERATED) else ()))
        _algorithm(draft)
        put_lengths(draft, "data.max_len", "rollout.max_new_tokens")
        _steps(draft)
        _data(draft)
        lower_roles(draft)
        return draft.lowered(REASONS)
    except NotKnown as error:
        raise unknown_size(c, error) from None


def _updates(c: Configuration) -> int:
    total, batch = samples(c), c.size(TRAIN)
    if total % batch:
        raise not_lowered(c, TRAIN, f"{total:,} samples are not a whole number of optimizer steps of {batch:,}")
    return total // batch


def _algorithm(draft: Draft) -> None:
    c = draft.configuration
    draft.uses(ESTIMATOR, KL, KL_LOSS, LOSS, ASYNC, GENERATED)
    if c.value(FILTER) is True:
        draft.leave_out(FILTER, "the ready-made dataflows 'dapo' and 'dapo_round' filter groups")
    else:
        draft.uses("algo.dynamic_filtering_range")
    if c.value(UNSCALED) is True:
        draft.leave_out(UNSCALED, NORMALIZED)
    name = _with_critic(draft) if c.value(ESTIMATOR) == "gae" else _without_critic(draft)
    draft.put("algorithm", name, ESTIMATOR, KL, KL_LOSS, ASYNC)
    _loss(draft)
    if c.value(ASYNC) is True:
        put_lag(draft, QUEUE)
        if c.value(PARTIAL) is True:
            draft.leave_out(PARTIAL, "a response of hfdsl has the weights of one version")


def _kl_in_rewards(c: Configuration) -> bool:
    return uses_reference(c) and c.value(KL_LOSS) is not True


def has_reference(c: Configuration) -> bool:
    """Whether the run of hfdsl has a reference: for a KL term of the loss, or of the rewards if they have one."""
    name = c.value(ESTIMATOR)
    return uses_reference(c) and (c.value(KL_LOSS) is True or name == "gae" or name in WITH_KL)


def _without_critic(draft: Draft) -> str:
    c = draft.configuration
    name, epochs, queued = c.value(ESTIMATOR), c.size(EPOCHS), c.value(ASYNC) is True
    if not is_among(name, ADVANTAGES):
        raise not_lowered(c, ESTIMATOR, "no dataflow of it has these advantages")
    draft.put("options.group", c.size(SAMPLES), SAMPLES)
    draft.put("options.updates", _updates(c), TRAIN, PROMPTS, SAMPLES)
    if _kl_in_rewards(c):
        if name in WITH_KL:
            _put_kl(draft)
        else:
            why = f"advantages of {name} are those of scores in hfdsl; a KL term is one of the loss (algo.kl.use_loss)"
            draft.leave_out(KL, why)
    shape = (c.value(LOSS), name, c.value(KL_LOSS) is True and uses_reference(c), epochs, queued)
    ready = {
        ("ppo", "group_norm", True, 1, False): "grpo:grpo",
        ("ppo", "group_norm", False, 1, False): "grpo:grpo_without_reference",
        ("ppo", "dr_grpo", False, 1, False): "dr_grpo:dr_grpo",
        ("gspo", "group_norm", False, 1, False): "gspo:gspo",
        ("ppo", "group_norm", True, 1, True): "asynchronous:async_grpo",
    }
    if isinstance(c.value(LOSS), str) and shape in ready:
        draft.uses(EPOCHS)
        return f"{READY}.{ready[shape]}"
    draft.put("options.advantages", ADVANTAGES[name], ESTIMATOR)
    draft.put("options.epochs", epochs, EPOCHS)
    return f"{OWN}:{'async_without_critic' if queued else 'without_critic'}"


def _with_critic(draft: Draft) -> str:
    c = draft.configuration
    if c.value(ASYNC) is True:
        raise not_lowered(c, ASYNC, "its dataflow with a queue and a critic has one response to a prompt")
    epochs, updates = c.size(EPOCHS), _updates(c)
    draft.put("options.epochs", epochs, EPOCHS)
    draft.put("options.mini_batches", updates, TRAIN, PROMPTS, SAMPLES)
    draft.take("options.gamma", GAMMA, number)
    draft.take("options.lam", LAMBDA, number)
    draft.take("options.value_loss.clip", "critic.value_clip", number)
    if _kl_in_rewards(c):
        _put_kl(draft)
    if _kl_in_rewards(c) and c.value(LOSS) == "ppo" and c.size(SAMPLES) == 1:
        draft.uses(SAMPLES)
        return f"{READY}.ppo:ppo"
    draft.put("options.group", c.size(SAMPLES), SAMPLES)
    draft.put("options.critic_mini_batches", updates, TRAIN, PROMPTS, SAMPLES)
    draft.put("options.critic_epochs", epochs, EPOCHS)
    return f"{OWN}:with_critic"


def _put_kl(draft: Draft) -> None:
    """The coefficient of the KL term in the rewards."""
    draft.take("options.kl", KL, number)
    if draft.configuration.value(KL_TYPE) != "k1":
        draft.leave_out(KL_TYPE, "rewards of hfdsl have the estimator k1")


def _loss(draft: Draft) -> None:
    c = draft.configuration
    is_gspo = c.value(LOSS) == "gspo"
    if draft.fields["algorithm"].value.startswith(OWN):
        draft.put("options.loss.kind", "SequenceClip" if is_gspo else "Clip", LOSS)
    draft.put("options.loss.aggregation", "sequence-mean-token-mean" if is_gspo else "token-mean", LOSS)
    ends = c.value(CLIPS)
    if isinstance(ends, list) and len(ends) == 2:
        draft.put("options.loss.low", number(ends[0]), CLIPS)
        draft.put("options.loss.high", number(ends[1]), CLIPS)
    else:
        draft.take("options.loss.low", CLIP, number)
        draft.take("options.loss.high", CLIP, number)
    if not is_gspo and c.known(DUAL) is not None:
        draft.take("options.loss.dual", DUAL, number)
    if c.known("actor.entropy_coef") is not None:
        draft.take("options.loss.entropy", "actor.entropy_coef", number)
    if c.value(KL_LOSS) is True and uses_reference(c):
        draft.take("options.loss.kl", KL, number)
        draft.take("options.loss.estimator", KL_TYPE, one_of({name: name for name in ("k1", "k2", "k3")}))
    else:
        draft.put("options.loss.kl", 0.0, KL_LOSS)
    _correction(draft)


def _correction(draft: Draft) -> None:
    """The loss's correction for the log-probs of vLLM, which are not quite the trainer's."""
    c = draft.configuration
    if c.value(CORRECTED) is not True:
        draft.leave_out(CORRECTED, "losses of hfdsl weigh tokens by trainer / engine, truncated at 2")
        return
    draft.uses(CORRECTED)
    kind, bounds = c.value(OUTSIDE), c.value(BOUNDS)
    if kind not in ("tis", "icepop") or not isinstance(bounds, list) or len(bounds) != 2:
        draft.leave_out(OUTSIDE, "losses of hfdsl truncate or mask the ratio of trainer and engine by token")
        return
    draft.put("options.loss.correction.outside", "truncate" if kind == "tis" else "mask", OUTSIDE)
    draft.put("options.loss.correction.low", number(bounds[0]), BOUNDS)
    draft.put("options.loss.correction.high", number(bounds[1]), BOUNDS)


# -- steps, data, metrics


def _steps(draft: Draft) -> None:
    c = draft.configuration
    draft.put("backend", "ray")
    draft.put("steps", 1000, note="OpenRLHF counts episodes, whose steps depend on the rows of the data")
    if not draft.take("output", "ckpt.output_dir", text):
        draft.put("output", "runs/openrlhf", note="the folder of the run")
    draft.take("seed", "train.seed", integer)
    for name, key in (("every", "ckpt.save_steps"), ("keep", "ckpt.max_num")):
        count = c.known(key)
        if (
            is_integer(count)
            and count > 0
            and is_integer(c.known("ckpt.save_steps"))
            and c.value("ckpt.save_steps") > 0
        ):
            draft.put(f"checkpoints.{name}", count, key)
    draft.uses("ckpt.path", "logger.logging_steps")
    if is_set(c, "logger.wandb.key"):
        draft.uses("logger.wandb.key")  # a secret: wandb reads WANDB_API_KEY
        draft.take("wandb.project", "logger.wandb.project", text)
        if is_set(c, "logger.wandb.run_name"):
            draft.take("wandb.name", "logger.wandb.run_name", text)
    if is_set(c, "logger.tensorboard_dir"):
        draft.put("tensorboard", True, "logger.tensorboard_dir")


def _data(draft: Draft) -> None:
    c = draft.configuration
    draft.put("data.source.kind", "Dataset")
    if not (is_set(c, "data.prompt_dataset") and draft.take("data.source.path", "data.prompt_dataset", text)):
        draft.put("data.source.path", "train.jsonl", note="the data set of the prompts")
    draft.take("data.source.split", "data.prompt_split", text)
    draft.put("data.tokenizer.kind", "Pretrained")
    key = "actor.model_name_or_path"
    if not (is_set(c, key) and draft.take("data.tokenizer.path", key, text)):
        draft.put("data.tokenizer.path", "model", note="the folder of the model")
    field: Any = c.known(INPUT)
    if c.known("data.apply_chat_template") is True:
        draft.take("data.prompt.messages", INPUT, text)
        draft.uses("data.apply_chat_template")
    elif isinstance(field, str) and field.isidentifier():
        draft.put("data.prompt.text", f"{{{field}}}", INPUT)
