"""Keys and values of NeMo-RL's configuration, and settings that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from hfdsl.interop.library_tables import table
from hfdsl.interop.nemo_rl.units import (
    ASYNC,
    BACKEND,
    COLOCATED,
    DTENSOR,
    DYNAMIC,
    FILTER,
    GENERATION,
    GLOBAL,
    GPUS,
    IGNORE_ACCURACY,
    LOGPROB,
    LONGEST,
    MEGATRON,
    MICRO,
    NEW_TOKENS,
    NODES,
    PACKING,
    PROMPTS,
    SAMPLES,
    VLLM,
    count,
    get,
    on,
    parallel_keys,
    uses_async_engine,
)
from hfdsl.interop.reporting import Problem, finding, value_text
from hfdsl.interop.settings import MISSING, Configuration, is_integer

SIZES = (PROMPTS, SAMPLES, GLOBAL, MICRO, LOGPROB, LONGEST, NEW_TOKENS, NODES, GPUS)
CORRECTION = "loss_fn.use_importance_sampling_correction"
CHOICES = {
    BACKEND: ("vllm", "sglang", "megatron"),
    "policy.precision": ("float32", "bfloat16", "float16"),
    "grpo.adv_estimator.name": ("grpo", "gdpo", "opd", "reinforce_plus_plus"),
}


def sizes_are_positive(c: Configuration) -> Iterator[Problem]:
    """Sizes are positive."""
    keys = [*SIZES, *parallel_keys(c)]
    if c.value(BACKEND) == "vllm":
        keys += [f"{VLLM}.{name}_parallel_size" for name in ("tensor", "pipeline")]
    declared = table("nemo-rl").options
    for key in keys:
        value = c.known(key, otherwise=1)
        if is_integer(value) and value < 1:
            yield finding(c, "HF972", f"{key} = {value} is not positive", key, advice=("the smallest size is 1",))
        elif key in c.explicit and not isinstance(value, int) and key not in declared:
            yield finding(c, "HF972", f"{key} = {value_text(value)} is not an integer", key)


def runs_have_steps(c: Configuration) -> Iterator[Problem]:
    """A run has steps."""
    for key in ("grpo.max_num_steps", "grpo.max_num_epochs"):
        if is_integer(value := c.known(key)) and value < 1:
            yield finding(c, "HF979", f"{key} = {value}: no step is ever made", key)


def choices_are_known(c: Configuration) -> Iterator[Problem]:
    """Choices are among those that NeMo-RL has."""
    for key, choices in CHOICES.items():
        value = c.known(key)
        if value is not None and value != MISSING and value not in choices:
            near = get_close_matches(str(value), choices, n=1, cutoff=0.5)
            advice = (f"set {key} to {near[0]}",) if near else ()
            yield finding(
                c, "HF972", f"{key} = {value_text(value)} is not one of {', '.join(choices)}", key, advice=advice
            )


def fractions_are_fractions(c: Configuration) -> Iterator[Problem]:
    """Shares of memory and of probability are between 0 and 1."""
    # VllmGeneration.__init__, and vLLM's CacheConfig
    if c.value(BACKEND) != "vllm":
        return
    for key in (f"{GENERATION}.top_p", f"{VLLM}.gpu_memory_utilization"):
        value = c.known(key)
        if isinstance(value, int | float) and not 0 < value <= 1:
            yield finding(c, "HF972", f"{key} = {value} is not above 0 and at most 1", key)
    top_k, key = c.known(f"{GENERATION}.top_k"), f"{GENERATION}.top_k"
    if is_integer(top_k) and isinstance(top_k, int) and top_k != -1 and top_k < 1:
        yield finding(c, "HF972", f"{key} = {top_k}: 1 or more tokens, or null for all", key)


def one_backend_trains(c: Configuration) -> Iterator[Problem]:
    """One backend trains."""
    # Policy.__init__ in models/policy/lm_policy.py
    megatron, dtensor = f"{MEGATRON}.enabled", f"{DTENSOR}.enabled"
    if on(c, megatron) and on(c, dtensor):
        yield finding(
            c, "HF974", f"{megatron} and {dtensor} exclude each other", megatron, dtensor,
            advice=(f"set {dtensor} to false",),
        )  # fmt: skip
    if not on(c, megatron) and not on(c, dtensor):
        yield finding(c, "HF974", f"nothing trains: neither {megatron} nor {dtensor} is true", megatron, dtensor)
    draft = "policy.draft.enabled"
    if on(c, draft) and not on(c, megatron):
        yield finding(c, "HF974", f"{draft} needs {megatron}", draft, megatron)
    if on(c, draft) and on(c, f"{PACKING}.enabled"):
        yield finding(c, "HF974", f"{draft} and {PACKING}.enabled exclude each other", draft, f"{PACKING}.enabled")
    lora = f"{DTENSOR}.lora_cfg.enabled"
    if not on(c, megatron) and on(c, dtensor) and on(c, lora) and not on(c, f"{DTENSOR}._v2"):
        yield finding(c, "HF974", f"{lora} needs {DTENSOR}._v2", lora, f"{DTENSOR}._v2")


def batching_is_one_kind(c: Configuration) -> Iterator[Problem]:
    """Micro-batches are of one kind."""
    # Policy.__init__
    dynamic, packing = f"{DYNAMIC}.enabled", f"{PACKING}.enabled"
    if on(c, dynamic) and on(c, packing):
        yield finding(
            c, "HF974", f"{dynamic} and {packing} exclude each other", dynamic, packing,
            advice=(f"set {packing} to false",),
        )  # fmt: skip
    pipeline = f"{MEGATRON}.pipeline_model_parallel_size"
    if on(c, dynamic) and on(c, f"{MEGATRON}.enabled") and count(c, pipeline) > 1:
        yield finding(c, "HF974", f"{dynamic} needs {pipeline} = 1, not {count(c, pipeline)}", dynamic, pipeline)


def parallelism_has_its_batches(c: Configuration) -> Iterator[Problem]:
    """Context parallelism has the batches that it needs."""
    # models/megatron/setup.py and models/automodel/setup.py
    packing = f"{PACKING}.enabled"
    if on(c, f"{MEGATRON}.enabled"):
        context = f"{MEGATRON}.context_parallel_size"
        if count(c, context) > 1 and not on(c, packing):
            yield finding(
                c, "HF974", f"{context} = {count(c, context)} needs {packing}", context, packing,
                advice=(f"set {packing} to true",),
            )  # fmt: skip
        return
    context, tensor = f"{DTENSOR}.context_parallel_size", f"{DTENSOR}.tensor_parallel_size"
    if count(c, context) == 1:
        return
    if on(c, packing):
        yield finding(
            c, "HF974", f"{context} = {count(c, context)} and {packing} exclude each other", context, packing,
            advice=(f"set {packing} to false",),
        )  # fmt: skip
    sequence = f"{DTENSOR}.sequence_parallel"
    if count(c, tensor) > 1 and on(c, sequence):
        yield finding(
            c, "HF974", f"{context} = {count(c, context)} and {sequence} exclude each other", context, sequence
        )


def accuracy_needs_equal_batches(c: Configuration) -> Iterator[Problem]:
    """With much tensor parallelism, updates and log-probs have micro-batches of one size."""
    # Policy.__init__; force_on_policy_ratio sets the variable that switches the check off
    tensor = parallel_keys(c)[0]
    if count(c, tensor) < 4 or not c.has(LOGPROB) or on(c, "loss_fn.force_on_policy_ratio"):
        return
    if c.known(IGNORE_ACCURACY):
        return
    if c.size(MICRO) != c.size(LOGPROB):
        yield finding(
            c,
            "HF974",
            f"{tensor} = {count(c, tensor)} needs {LOGPROB} = {MICRO}, and they are {c.size(LOGPROB)} and "
            f"{c.size(MICRO)}: log-probs differ between sizes of batches",
            LOGPROB,
            MICRO,
            tensor,
            notes=(f"NeMo-RL continues where the environment has {IGNORE_ACCURACY}=1 (--env)",),
            repairs=(LOGPROB, MICRO),
        )


def asynchrony_is_whole(c: Configuration) -> Iterator[Problem]:
    """Asynchronous GRPO has an engine, GPUs and a correction for it."""
    # async_grpo_train in algorithms/grpo.py and examples/run_grpo.py
    if not on(c, ASYNC):
        return
    backend = c.value(BACKEND)
    if backend not in ("vllm", "megatron") or not uses_async_engine(c):
        key = f"{VLLM}.async_engine" if backend == "vllm" else f"{GENERATION}.mcore_generation_config.async_engine"
        yield finding(c, "HF974", f"{ASYNC} needs an engine that serves requests at any time: {key}", ASYNC, key,
                      advice=(f"set {key} to true",))  # fmt: skip
    if not on(c, CORRECTION):
        yield finding(c, "HF974", f"{ASYNC} needs {CORRECTION}: rows are of older weights", ASYNC, CORRECTION,
                      advice=(f"set {CORRECTION} to true",))  # fmt: skip
    if c.value(COLOCATED):
        yield finding(
            c, "HF974", f"{ASYNC} needs GPUs of its own for generation: {COLOCATED} = False", ASYNC, COLOCATED
        )
    excluded = (FILTER, "grpo.reward_scaling.enabled", "grpo.reward_shaping.enabled", "data.use_multiple_dataloader")
    for key in excluded:
        if on(c, key):
            yield finding(c, "HF974", f"{ASYNC} and {key} exclude each other", key, ASYNC)
    age, flying = "grpo.async_grpo.max_trajectory_age_steps", "grpo.async_grpo.in_flight_weight_updates"
    steps = get(c, age)
    if is_integer(steps) and steps > 1 and not on(c, flying):
        yield finding(c, "HF979", f"{age} = {steps} gives nothing without {flying}: generation waits for each update",
                      age, flying)  # fmt: skip


def environments_have_a_server(c: Configuration) -> Iterator[Problem]:
    """NeMo-Gym reaches the engine."""
    # _should_use_nemo_gym and _resolve_message_level_advantage_penalties in algorithms/grpo.py
    gym = "env.should_use_nemo_gym"
    if not on(c, gym):
        for key in ("grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage"):
            if get(c, key) is not None:
                yield finding(c, "HF974", f"{key} needs {gym}", key, gym)
        return
    if not uses_async_engine(c):
        yield finding(c, "HF974", f"{gym} needs an engine with async_engine = True", gym, f"{VLLM}.async_engine")
        return
    places = {"vllm": VLLM, "megatron": f"{GENERATION}.mcore_generation_config"}
    server = f"{places.get(c.value(BACKEND), VLLM)}.expose_http_server"
    if not on(c, server):
        yield finding(c, "HF974", f"{gym} needs {server}", gym, server, advice=(f"set {server} to true",))


def filters_can_filter(c: Configuration) -> Iterator[Problem]:
    """Dynamic sampling has batches to choose from."""
    # setup and dynamic_sampling in algorithms/grpo.py
    factor, batches = "grpo.batch_multiplier", "grpo.dynamic_sampling_max_gen_batches"
    value = get(c, factor, 1)
    if not on(c, FILTER) and value != 1:
        yield finding(c, "HF974", f"{factor} = {value} needs {FILTER}", factor, FILTER, advice=(f"set {factor} to 1",))
    most = get(c, batches)
    if on(c, FILTER) and is_integer(most) and most < 1:
        yield finding(c, "HF972", f"{batches} = {most} is not positive", batches, FILTER)


def validation_has_batches(c: Configuration) -> Iterator[Problem]:
    """Validation has a batch."""
    # validate in algorithms/grpo.py takes max_val_samples // val_batch_size batches
    period, size, most = (f"grpo.{name}" for name in ("val_period", "val_batch_size", "max_val_samples"))
    runs = (is_integer(get(c, period)) and get(c, period) > 0) or on(c, "grpo.val_at_start") or on(c, "grpo.val_at_end")
    if not runs or get(c, size) is None or get(c, most) is None:
        return
    if is_integer(c.value(size)) and c.value(size) < 1:
        yield finding(c, "HF972", f"{size} = {c.value(size)} is not positive", size)
    elif is_integer(c.value(most)) and 0 <= c.value(most) < c.size(size):
        yield finding(
            c,
            "HF979",
            f"{most} = {c.value(most)} is less than {size} = {c.size(size)}: validation has no batch and reports "
            "nothing",
            most,
            size,
            repairs=(size,),
        )


def checkpoints_name_a_metric(c: Configuration) -> Iterator[Problem]:
    """Checkpoints are ranked by a metric of training or validation."""
    # grpo_train in algorithms/grpo.py, when it saves
    key = "checkpointing.metric_name"
    name = get(c, key)
    if on(c, "checkpointing.enabled") and isinstance(name, str) and not name.startswith(("train:", "val:")):
        yield finding(c, "HF972", f"{key} = {name} begins neither with train: nor with val:", key,
                      advice=(f"set {key} to val:{name.removeprefix('val_')}",))  # fmt: skip


def quantization_is_whole(c: Configuration) -> Iterator[Problem]:
    """FP8 in generation has what it needs."""
    # setup in algorithms/grpo.py
    if c.value(BACKEND) != "vllm":
        return
    precision, cache = f"{VLLM}.precision", f"{VLLM}.kv_cache_dtype"
    if get(c, precision) == "fp8" and not on(c, CORRECTION):
        yield finding(c, "HF974", f"{precision} = fp8 needs {CORRECTION}", precision, CORRECTION)
    if not str(get(c, cache, "auto")).startswith("fp8"):
        return
    if get(c, precision) != "fp8":
        yield finding(c, "HF974", f"{cache} = {get(c, cache)} needs {precision} = fp8", cache, precision)
    if on(c, f"{DTENSOR}.enabled"):
        yield finding(c, "HF974", f"{cache} = {get(c, cache)} needs Megatron", cache, f"{DTENSOR}.enabled")
    if uses_async_engine(c):
        yield finding(c, "HF974", f"{cache} = {get(c, cache)} and async_engine exclude each other", cache,
                      f"{VLLM}.async_engine")  # fmt: skip
    pipeline = f"{MEGATRON}.pipeline_model_parallel_size"
    if count(c, pipeline) > 1:
        yield finding(c, "HF974", f"{cache} = {get(c, cache)} needs {pipeline} = 1", cache, pipeline)
