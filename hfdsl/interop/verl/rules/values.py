"""Values that verl refuses: sizes, switches, choices."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.reporting import Problem, finding, setting_fix, value_text
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.value_types import choice_problem
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MINI,
    FSDP,
    GPUS,
    MICRO,
    MINI,
    MODE,
    MODEL,
    NODES,
    REF,
    ROLLOUT,
    SAMPLES,
    STRATEGY,
    SYNC_STEPS,
    TRAIN,
    uses_critic,
    uses_reference,
)

SIZES = (
    TRAIN, MINI, SAMPLES, GPUS, NODES, f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.data_parallel_size",
    f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.max_model_len",
)  # fmt: skip  # a list of keys
"""Sizes that every run has."""

BOOLEAN = (
    f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward", "trainer.use_v1",
    f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{REF}.log_prob_use_dynamic_bsz", f"{MODEL}.use_remove_padding",
    f"{ROLLOUT}.enable_chunked_prefill",
)  # fmt: skip
OFF = ("no", "off", "n", "f", "none", "disable", "disabled")
"""Texts that mean no; other texts count as true, as they are meant."""

ESTIMATES_OF_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
CHOICES: dict[str, tuple[str, ...]] = {
    f"{ACTOR}.loss_agg_mode": (
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
    ),
    f"{ACTOR}.kl_loss_type": (*ESTIMATES_OF_KL, *(f"{name}+" for name in ESTIMATES_OF_KL)),
    MODE: ("sync", "colocate_async", "separate_async"),
    "trainer.v1.sampler.max_off_policy_strategy": ("drop", "wait"),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "algorithm.kl_penalty": (*ESTIMATES_OF_KL, *(f"{name}+" for name in ESTIMATES_OF_KL)),
    f"{ACTOR}.megatron.dtype": ("bfloat16", "float16"),
    f"{ROLLOUT}.checkpoint_engine.backend": (
        "naive", "nccl", "nixl", "hccl", "kimi_ckpt_engine", "mooncake", "delta", "delta_sharded",
    ),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "data.truncation": ("error", "left", "right", "middle"),
}  # fmt: skip
USED_WITH = {
    f"{ACTOR}.kl_loss_type": f"{ACTOR}.use_kl_loss", "algorithm.kl_ctrl.type": "algorithm.use_kl_in_reward",
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
}  # fmt: skip
"""Switches of choices that are not read without them."""

ADDED_BY = {f"{ROLLOUT}.checkpoint_engine.backend": f"{ROLLOUT}.checkpoint_engine.custom_backend_module"}
"""Keys of users' modules, which add to choices."""

STRATEGIES = {"FSDP": FSDP, "Mcore": ("megatron",), "VeOmni": ("veomni",)}
"""The strategies of an engine, by the beginning of the names of its classes."""

ESTIMATORS = (
    "gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "grpo_passk", "gpg",
    "rloo_vectorized", "grpo_vectorized", "optimal_token_baseline", "tir_optimal_token_baseline", "gdpo",
)  # fmt: skip


def sizes_are_positive(c: Configuration) -> Iterator[Problem]:
    """Sizes are positive integers."""
    for key in dict.fromkeys(c.owner(key) for key in (*SIZES, *_sizes_of_engines(c), *_sizes_of_batches(c))):
        value = c.known(key)
        if key not in c.explicit or c.explicit[key].unknown or (value is None and c.defaults.get(key) is None):
            continue
        if isinstance(value, bool):
            continue  # Python computes with True as with 1
        if isinstance(value, float) and key.endswith("token_len_per_gpu"):
            continue  # a bound, to which lengths are compared
        if not isinstance(value, int):
            yield finding(c, "HF972", f"{key} = {value_text(value)} is not an integer", key)
        elif value < 1:
            yield finding(
                c, "HF972", f"{key} = {value} is not positive", key, advice=("the smallest that it can be is 1",)
            )


def _sizes_of_engines(c: Configuration) -> tuple[str, ...]:
    """The parallel sizes of the training engine."""
    match c.known(STRATEGY):
        case "megatron":
            names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
            return tuple(f"{ACTOR}.megatron.{name}" for name in names)
        case "fsdp" | "fsdp2":
            name = "ulysses_sequence_parallel_size"
            return f"{ACTOR}.{name}", f"{ACTOR}.fsdp_config.{name}"
        case _:
            return ()


def _sizes_of_batches(c: Configuration) -> Iterator[str]:
    """The sizes of the batches that the run makes: those of dynamic batches count tokens."""
    budget, rows = "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu"
    yield f"{ACTOR}.ppo_max_token_len_per_gpu" if c.known(f"{ACTOR}.use_dynamic_bsz") else MICRO
    yield f"{ROLLOUT}.{budget if c.known(f'{ROLLOUT}.log_prob_use_dynamic_bsz') else rows}"
    if uses_reference(c):
        yield f"{REF}.{budget if c.known(f'{REF}.log_prob_use_dynamic_bsz') else rows}"
    if uses_critic(c):
        yield CRITIC_MINI
    if c.known(MODE) == "separate_async":
        yield SYNC_STEPS


def flags_are_booleans(c: Configuration) -> Iterator[Problem]:
    """Switches are True or False."""
    for key in BOOLEAN:
        if c.explicit.get(key) is None:
            continue
        value = c.known(key)
        if isinstance(value, str) and value.lower() in OFF:
            yield finding(c, "HF972", f"{key} = {value} is neither True nor False: any text counts as true", key)


def choices_are_known(c: Configuration) -> Iterator[Problem]:
    """Choices are among those that verl has."""
    for key, choices in CHOICES.items():
        if key in ADDED_BY and c.known(ADDED_BY[key]) is not None:
            continue
        if key not in c.explicit or (key in USED_WITH and not c.known(USED_WITH[key])):
            continue
        if c.known(key, otherwise=choices[0]) not in choices and (problem := choice_problem(c, key, choices)):
            yield problem


def estimator_is_known(c: Configuration) -> Iterator[Problem]:
    """The advantage estimator is one that verl registers."""
    key, brings_code = "algorithm.adv_estimator", ("external_lib", "custom_cls.path")
    if any(k.endswith(brings_code) and c.known(k) for k in (*c.explicit, f"{MODEL}.external_lib")):
        return  # a user's module, which may register others
    value = c.value(key)
    if value not in ESTIMATORS:
        near = _near(str(value), ESTIMATORS)
        sentence, fixes = setting_fix(c, key, near) if near else ("", ())
        yield finding(
            c,
            "HF972",
            f"no advantage estimator is called '{value}'; verl has {', '.join(ESTIMATORS)}",
            key,
            advice=(sentence,) if sentence else (),
            fixes=fixes,
        )


def engine_has_its_strategy(c: Configuration) -> Iterator[Problem]:
    """The strategy is one of the engine whose keys the configuration has."""
    for role in (ACTOR, "critic"):
        key, target = f"{role}.strategy", c.known(f"{role}._target_")
        strategies = next((s for name, s in STRATEGIES.items() if name in str(target)), None)
        value = c.known(key)
        if strategies is None or value is None or value in strategies or key not in c.explicit:
            continue
        if role == "critic" and not uses_critic(c):
            continue
        engines = {"megatron": "megatron", "veomni": "veomni", **dict.fromkeys(FSDP, "dp")}
        hint = f"set model_engine={engines[value]}, which brings the keys of that engine" if value in engines else ""
        yield finding(
            c,
            "HF974",
            f"{key} = {value}, and the configuration has the keys of {' or '.join(strategies)}",
            key,
            advice=(hint,) if hint else (),
        )


def engines_have_no_pipeline(c: Configuration) -> Iterator[Problem]:
    """Rollout engines have no pipeline parallelism."""
    key = f"{ROLLOUT}.pipeline_model_parallel_size"
    value = c.value(key)
    if is_integer(value) and value > 1 and c.value(f"{ROLLOUT}.name") in ("vllm", "sglang", "trtllm"):
        sentence, fixes = setting_fix(c, key, 1)
        yield finding(
            c,
            "HF972",
            f"{key} = {value}: verl 0.9 runs engines without pipeline stages",
            key,
            advice=(sentence,),
            fixes=fixes,
        )


def off_policy_threshold_is_positive(c: Configuration) -> Iterator[Problem]:
    """The threshold of an asynchronous sampler is null or positive."""
    key = "trainer.v1.sampler.max_off_policy_threshold"
    value = c.value(key)
    if value is not None and key in c.explicit and not (isinstance(value, int) and value > 0):
        yield finding(
            c,
            "HF972",
            f"{key} = {value} is neither null nor a positive integer",
            key,
            advice=(f"set {key} to 1 or more; null turns the control off",),
        )


def kl_control_has_a_horizon(c: Configuration) -> Iterator[Problem]:
    """Adaptive KL control has a horizon."""
    kind, horizon = "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon"
    value = c.value(horizon)
    if (
        c.value("algorithm.use_kl_in_reward")
        and c.value(kind) == "adaptive"
        and isinstance(value, int | float)
        and value <= 0
    ):
        yield finding(c, "HF972", f"{horizon} = {value} is not positive", horizon, kind)


def engines_have_memory(c: Configuration) -> Iterator[Problem]:
    """The rollout engine has a share of memory, samples and a way to get weights."""
    memory, penalty = f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.temperature"
    share, heat = c.known(memory), c.known(penalty)
    if isinstance(share, int | float) and not 0 < share <= 1:
        yield finding(c, "HF972", f"{memory} = {share} is not above 0 and at most 1", memory)
    if isinstance(heat, int | float) and heat < 0:
        yield finding(c, "HF972", f"{penalty} = {heat} is negative", penalty)
    for key in (f"{ROLLOUT}.pipeline_model_parallel_size", f"{ROLLOUT}.agent.num_workers"):
        if is_integer(value := c.known(key)) and value < 1:
            yield finding(c, "HF972", f"{key} = {value} is not positive", key)
    mode = f"{ROLLOUT}.mode"
    if mode in c.explicit and (value := c.known(mode, otherwise="async")) not in ("async", "sync"):
        yield finding(c, "HF972", f"{mode} = {value_text(value)}: verl 0.9 has async alone", mode)


def runs_have_steps(c: Configuration) -> Iterator[Problem]:
    """A run has optimizer steps, and its periods are numbers."""
    for key in ("trainer.save_freq", "trainer.test_freq", "trainer.total_epochs", "trainer.critic_warmup"):
        if key not in c.explicit or c.explicit[key].unknown:
            continue
        if (value := c.known(key, otherwise=0)) is None or isinstance(value, str | list):
            yield finding(c, "HF972", f"{key} = {value_text(value)} is not a number", key)
    steps, epochs = c.known("trainer.total_training_steps"), c.known("trainer.total_epochs")
    if is_integer(epochs) and epochs < 1:
        yield finding(c, "HF979", f"trainer.total_epochs = {epochs}: no step is ever made", "trainer.total_epochs")
    elif is_integer(steps) and steps < 1:
        key = "trainer.total_training_steps"
        yield finding(c, "HF979", f"{key} = {steps}: no step is ever made", key)
    key = f"{ACTOR}.ppo_epochs"
    if is_integer(value := c.known(key)) and value < 1:
        yield finding(c, "HF979", f"{key} = {value}: no optimizer step is ever made", key)


def _near(text: str, choices: tuple[str, ...]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(text, choices, n=1, cutoff=0.6)
    return near[0] if near else None
