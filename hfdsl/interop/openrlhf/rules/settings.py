"""Values of OpenRLHF's options, and options that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.openrlhf.units import (
    ASYNC,
    COLOCATE_ALL,
    ENGINE_SIZE,
    ENGINES,
    ESTIMATOR,
    GENERATED,
    KL,
    MICRO,
    PROMPTS,
    RING,
    SAMPLE_BATCH,
    SAMPLES,
    TENSOR,
    TRAIN,
    gpu_keys,
    is_set,
    models,
    rewards_are_remote,
    uses_critic,
)
from hfdsl.interop.reporting import Problem, finding, value_text
from hfdsl.interop.settings import Configuration, is_integer

SIZES = (PROMPTS, SAMPLES, SAMPLE_BATCH, TRAIN, MICRO, RING, TENSOR, "data.max_len")
PERIODS = ("logger.logging_steps", "ckpt.save_steps", "eval.steps")
GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
ACTOR_MODEL, CRITIC_MODEL, REWARD_MODEL = (f"{role}.model_name_or_path" for role in ("actor", "critic", "reward"))
REMOTE, AGENT, IMAGES = "reward.remote_url", "train.agent_func_path", "data.max_images_per_prompt"
FILTER, RANGE = "algo.dynamic_filtering_enable", "algo.dynamic_filtering_range"
PACKING, SLEEP, PARTIAL = "ds.packing_samples", "vllm.enable_sleep", "train.partial_rollout_enable"
LONGEST, TOTAL = "rollout.max_new_tokens", "data.max_len"


def sizes_are_positive(c: Configuration) -> Iterator[Problem]:
    """Sizes are positive."""
    keys = [*SIZES, *(key for role in models(c) for key in gpu_keys(role))]
    if c.value(ASYNC) is True:
        keys.append("train.async_queue_size")
    for key in keys:
        value = c.known(key)
        if is_integer(value) and value < 1:
            yield finding(c, "HF972", f"{key} = {value} is not positive", key, advice=("the smallest size is 1",))
    engines = c.value(ENGINES)
    if engines is None or (is_integer(engines) and engines < 1):
        # SamplesGenerator._dispatch_prompts_to_vllm has no other way to generate
        yield finding(
            c,
            "HF974",
            f"{ENGINES} = {value_text(engines)}: OpenRLHF generates with engines of vLLM only",
            ENGINES,
            advice=(f"set {ENGINES} to 1 or more",),
        )
    elif is_integer(size := c.value(ENGINE_SIZE)) and size < 1:
        yield finding(c, "HF972", f"{ENGINE_SIZE} = {size} is not positive", ENGINE_SIZE)
    for key in PERIODS:
        if c.known(key) == 0:  # the step is taken modulo the period
            yield finding(c, "HF972", f"{key} = 0: a period of steps is 1 or more, or -1 for never", key)


def fractions_are_fractions(c: Configuration) -> Iterator[Problem]:
    """Shares of memory and of probability are between 0 and 1."""
    # vLLM checks both, in CacheConfig and in SamplingParams; PolicyLoss in models/loss.py checks the last one
    for key in ("vllm.gpu_memory_utilization", "rollout.top_p"):
        value = c.known(key)
        if isinstance(value, int | float) and not 0 < value <= 1:
            yield finding(c, "HF972", f"{key} = {value} is not above 0 and at most 1", key)
    clip = c.known("actor.dual_clip")
    if isinstance(clip, int | float) and clip <= 1:
        yield finding(c, "HF972", f"actor.dual_clip = {clip} is not above 1", "actor.dual_clip")


def optimizers_can_step(c: Configuration) -> Iterator[Problem]:
    """Optimizers have a rate and steps, and DeepSpeed a stage that it has."""
    stage = c.known("ds.zero_stage")
    if is_integer(stage) and not 0 <= stage <= 3:
        yield finding(c, "HF972", f"ds.zero_stage = {stage}: DeepSpeed has the stages 0 to 3", "ds.zero_stage")
    for role in ("actor", "critic") if uses_critic(c) else ("actor",):
        key = f"{role}.adam.lr"
        rate = c.known(key)
        if isinstance(rate, int | float) and rate < 0:
            yield finding(c, "HF972", f"{key} = {rate} is negative", key)
        elif rate == 0:
            yield finding(c, "HF979", f"{key} = 0: no parameter of the {role} changes", key)
    for key in ("train.max_epochs", "train.num_episodes"):
        if is_integer(value := c.known(key)) and value < 1:
            yield finding(c, "HF979", f"{key} = {value}: no optimizer step is ever made", key)
    if c.known("rollout.temperature") == 0 and is_integer(count := c.known(SAMPLES)) and count > 1:
        message = f"rollout.temperature = 0 makes the {count} samples of a prompt all alike"
        yield finding(c, "HF979", message, "rollout.temperature", SAMPLES)


def models_and_prompts_are_named(c: Configuration) -> Iterator[Problem]:
    """The actor, the rewards and the prompts are named."""
    for key in (ACTOR_MODEL, "data.prompt_dataset"):
        if not is_set(c, key):
            yield finding(c, "HF974", f"--{key} is not given", key)
    if not rewards_are_remote(c) and not is_set(c, REWARD_MODEL):
        yield finding(
            c,
            "HF974",
            f"nothing gives rewards: none of --{REWARD_MODEL}, --{REMOTE} and --{AGENT} is given",
            REWARD_MODEL,
        )


def groups_have_members(c: Configuration) -> Iterator[Problem]:
    """A group that is compared has at least two samples."""
    # cli/train_ppo_ray.py
    if c.value(ESTIMATOR) in GROUPED and c.size(SAMPLES) < 2:
        yield finding(
            c,
            "HF972",
            f"{SAMPLES} = 1, and {ESTIMATOR} = {c.value(ESTIMATOR)} compares the samples of a prompt",
            SAMPLES,
            ESTIMATOR,
            advice=(f"set {SAMPLES} to 2 or more",),
        )


def filters_can_filter(c: Configuration) -> Iterator[Problem]:
    """Dynamic filtering has a range, scores, and groups."""
    # cli/train_ppo_ray.py
    if c.value(FILTER) is not True:
        return
    bounds = c.value(RANGE)
    if isinstance(bounds, list) and len(bounds) == 2 and bounds[0] >= bounds[1]:
        yield finding(c, "HF972", f"{RANGE} = {bounds[0]} {bounds[1]}: the first is not below the second", RANGE)
    if not rewards_are_remote(c):
        yield finding(c, "HF974", f"--{FILTER} needs --{REMOTE} or --{AGENT}", FILTER)
    if c.size(SAMPLES) < 2:
        yield finding(
            c,
            "HF974",
            f"--{FILTER} compares the samples of a prompt, and {SAMPLES} = 1",
            FILTER,
            SAMPLES,
            advice=(f"set {SAMPLES} to 2 or more",),
        )


def evaluations_have_rewards(c: Configuration) -> Iterator[Problem]:
    """An evaluation has rewards that need no reward model."""
    # cli/train_ppo_ray.py
    if is_set(c, "eval.dataset") and not rewards_are_remote(c):
        yield finding(c, "HF974", f"--eval.dataset needs --{REMOTE} or --{AGENT}", "eval.dataset")


def asynchrony_is_whole(c: Configuration) -> Iterator[Problem]:
    """Asynchronous options go together."""
    # cli/train_ppo_ray.py; without --train.colocate_all it switches --vllm.enable_sleep off
    if c.value(PARTIAL) is True and c.value(ASYNC) is not True:
        yield finding(c, "HF974", f"--{PARTIAL} needs --{ASYNC}", PARTIAL)
    if c.value(ASYNC) is True and c.value(SLEEP) is True and c.value(COLOCATE_ALL) is True:
        yield finding(
            c,
            "HF974",
            f"--{ASYNC} and --{SLEEP} exclude each other: engines that generate all the time do not sleep",
            SLEEP,
            ASYNC,
            advice=(f"leave out --{SLEEP}",),
        )


def generation_is_not_larger(c: Configuration) -> Iterator[Problem]:
    """A call of the engines has no more prompts than a step, unless a queue keeps the rest."""
    # cli/train_ppo_ray.py
    generated = c.value(GENERATED)
    if is_integer(generated) and generated > c.size(PROMPTS) and c.value(ASYNC) is not True:
        yield finding(
            c,
            "HF974",
            f"{GENERATED} = {generated} prompts are more than {PROMPTS} = {c.size(PROMPTS)}, which needs --{ASYNC}",
            GENERATED,
            PROMPTS,
            repairs=(GENERATED, PROMPTS),
        )


def images_go_with_their_trainer(c: Configuration) -> Iterator[Problem]:
    """A run with images has no critic and does not pack samples."""
    # cli/train_ppo_ray.py, before ring attention and dynamic batches switch packing on
    images = c.value(IMAGES)
    if not is_integer(images) or images < 1:
        return
    if uses_critic(c):
        yield finding(
            c,
            "HF974",
            f"{IMAGES} = {images}, and {ESTIMATOR} = gae has a critic, which takes no images",
            IMAGES,
            ESTIMATOR,
            advice=(f"set {ESTIMATOR} to reinforce_baseline, rloo or group_norm",),
        )
    if c.value(PACKING) is True:
        yield finding(
            c, "HF974", f"{IMAGES} = {images} and --{PACKING} exclude each other", PACKING, IMAGES,
            advice=(f"leave out --{PACKING}",),
        )  # fmt: skip


def dtypes_are_supported(c: Configuration) -> Iterator[Problem]:
    """Tensor parallelism and 4-bit weights compute in bf16."""
    # DeepspeedStrategy.__init__ and models/actor.py
    dtype = "ds.param_dtype"
    if c.value(dtype) == "bf16":
        return
    if c.size(TENSOR) > 1:
        yield finding(
            c, "HF974", f"{TENSOR} = {c.size(TENSOR)} needs {dtype} = bf16, not {c.value(dtype)}", dtype, TENSOR
        )
    if c.value("ds.load_in_4bit") is True:
        yield finding(
            c, "HF974", f"--ds.load_in_4bit needs {dtype} = bf16, not {c.value(dtype)}", dtype, "ds.load_in_4bit"
        )


def penalties_fit_lengths(c: Configuration) -> Iterator[Problem]:
    """Penalties of long and truncated responses are within their ranges."""
    # trainer/ppo_utils/length_penalty.py
    buffer, coefficient = c.value("reward.overlong_buffer_len"), c.value("reward.stop_properly_penalty_coef")
    longest = LONGEST if c.value(LONGEST) else TOTAL
    if isinstance(buffer, int | float) and buffer > c.size(longest):
        yield finding(
            c,
            "HF972",
            f"reward.overlong_buffer_len = {buffer} tokens are more than {longest} = {c.size(longest)}",
            "reward.overlong_buffer_len",
            longest,
        )
    if isinstance(coefficient, int | float) and coefficient > 1:
        key = "reward.stop_properly_penalty_coef"
        yield finding(c, "HF972", f"{key} = {coefficient} is above 1: it scales rewards by 0 to 1", key)


def prompts_have_room(c: Configuration) -> Iterator[Problem]:
    """The longest response leaves room for a prompt."""
    # The executors of utils/agent.py cut prompts to data.max_len less the longest response.
    if c.value(LONGEST) is not None and c.size(LONGEST) >= c.size(TOTAL):
        yield finding(
            c,
            "HF978",
            f"{TOTAL} = {c.size(TOTAL)} tokens hold a prompt and a response, and {LONGEST} = {c.size(LONGEST)} leaves "
            "no room for a prompt",
            LONGEST,
            TOTAL,
            advice=(f"set {TOTAL} above {c.size(LONGEST)}, by the longest prompt",),
        )


def settings_have_an_effect(c: Configuration) -> Iterator[Problem]:
    """Losses and models that are asked for are used."""
    # ActorPPOTrainer.training_step, and cli/train_ppo_ray.py, which drops the critic of other estimators than GAE
    loss = "algo.kl.use_loss"
    coefficient = c.value(KL)
    if c.value(loss) is True and isinstance(coefficient, int | float) and coefficient <= 0:
        yield finding(
            c, "HF979", f"--{loss} adds nothing to the loss: with {KL} = {coefficient} there is no reference model",
            loss, KL,
        )  # fmt: skip
    if is_set(c, CRITIC_MODEL) and not uses_critic(c):
        yield finding(
            c,
            "HF979",
            f"--{CRITIC_MODEL} is not used: {ESTIMATOR} = {c.value(ESTIMATOR)} has no critic",
            CRITIC_MODEL,
            ESTIMATOR,
        )
    if c.value(SLEEP) is True and c.value(COLOCATE_ALL) is not True:
        yield finding(
            c, "HF979", f"--{SLEEP} is switched off: the engines have GPUs of their own without --{COLOCATE_ALL}", SLEEP
        )
