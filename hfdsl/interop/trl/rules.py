"""The rules of TRL's configuration, each a function from a configuration to findings.

They follow what TRL 1.16 demands in ``GRPOConfig`` and ``RLOOConfig``, in their trainers, and in the engine. A rule
that needs a value which is not known raises ``NotKnown`` and is listed as not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from hfdsl.interop.library_tables import table
from hfdsl.interop.reporting import Problem, Rule, finding, setting_fix, value_text
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.trl.units import (
    ACCUMULATION,
    GENERATION,
    GROUP,
    ITERATIONS,
    PROCESSES,
    ROWS,
    STEPS,
    generation,
    generation_text,
    micro_batch,
)
from hfdsl.interop.value_types import type_problem

SIZES = (ROWS, ACCUMULATION, STEPS, GENERATION, GROUP, ITERATIONS, PROCESSES, "max_completion_length",
         "per_device_eval_batch_size", "num_generations_eval")  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_type": ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "scale_rewards": ("group", "batch", "none", "True", "False"),
}
ENGINE_CHOICES: dict[str, tuple[str, ...]] = {
    "vllm_mode": ("colocate", "server"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
USED_WITH = {"vllm_": "use_vllm", "lora_": "use_peft"}
"""By the prefix of arguments, the switch without which TRL ignores them."""

WHOLE = ("seed", "data_seed", "lora_r")
"""Integers that no fraction may stand for; with others, Python only computes."""

REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


def sizes_are_positive(c: Configuration) -> Iterator[Problem]:
    """Sizes are positive integers."""
    for key in (*SIZES, *(("vllm_tensor_parallel_size",) if c.known("use_vllm") is True else ())):
        value = c.known(key)
        if key not in c.explicit or c.explicit[key].unknown or value is None:
            continue
        if not is_integer(value):
            yield finding(c, "HF972", f"{key} = {value_text(value)} is not an integer", key)
        elif value < 1:
            yield finding(c, "HF972", f"{key} = {value} is not positive", key, advice=("the smallest size is 1",))


def numbers_are_numbers(c: Configuration) -> Iterator[Problem]:
    """Numbers of a file are numbers: argparse reads its texts alone, and takes other values as they are."""
    for key, facts in table("trl").options.items():
        if key not in c.explicit or c.explicit[key].unknown or (key in SIZES and c.known(key) is not None):
            continue
        if any(key.startswith(prefix) and c.known(switch) is not True for prefix, switch in USED_WITH.items()):
            continue
        takes_none = facts.get("none") or c.defaults.get(key) is None
        if problem := type_problem(c, key, {**facts, "none": takes_none}, fractions=key not in WHOLE):
            yield problem


def samples_are_drawn(c: Configuration) -> Iterator[Problem]:
    """Tokens are drawn with a temperature, a penalty and shares that engines take."""
    # generate() of transformers, and SamplingParams of vLLM
    engine = c.known("use_vllm")
    for key, least in (("temperature", 0), ("repetition_penalty", 0), ("top_p", 0), ("top_k", -1)):
        value, may_be_least = c.known(key), key == "temperature" and engine is not False
        if key not in c.explicit or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if key in ("top_k", "top_p") and engine is not False:
            continue
        if key == "top_p" and value >= 0:
            continue
        if value < least or (value == least and not may_be_least):
            bound = "negative" if least else "not positive"
            yield finding(c, "HF972", f"{key} = {value} is {bound}, and tokens cannot be drawn with it", key)


def runs_have_steps(c: Configuration) -> Iterator[Problem]:
    """A run trains: it has steps, epochs and a rate."""
    steps, epochs, rate = c.known("max_steps"), c.known("num_train_epochs"), c.known("learning_rate")
    if is_integer(steps) and steps <= 0 and isinstance(epochs, int | float) and epochs <= 0:
        message = f"num_train_epochs = {epochs} has no step, and max_steps = {steps} gives none"
        yield finding(c, "HF979", message, "num_train_epochs", "max_steps")
    if rate == 0:
        yield finding(c, "HF979", "learning_rate = 0: no parameter changes", "learning_rate")
    for key in ("save_steps", "eval_steps", "logging_steps"):  # below 1, they are shares of a run
        if isinstance(value := c.known(key), float) and value > 1 and value != int(value):
            yield finding(c, "HF972", f"{key} = {value} is not an integer", key)
    warm = c.known("warmup_steps")
    if isinstance(warm, int | float) and warm < 0:
        yield finding(c, "HF972", f"warmup_steps = {warm} is negative", "warmup_steps")


def precisions_exclude_each_other(c: Configuration) -> Iterator[Problem]:
    """A run has one precision."""
    if c.known("bf16") is True and c.known("fp16") is True:
        yield finding(c, "HF974", "fp16 and bf16 exclude each other", "fp16", "bf16", advice=("leave out one of them",))


def best_models_are_evaluated(c: Configuration) -> Iterator[Problem]:
    """The best model is known where checkpoints and evaluations go together."""
    # TrainingArguments.__post_init__ of transformers
    key, saved, evaluated = "load_best_model_at_end", c.known("save_strategy"), c.known("eval_strategy")
    texts = isinstance(saved, str) and isinstance(evaluated, str)
    if c.known(key) is True and texts and saved not in ("best", evaluated):
        message = (
            f"{key} needs evaluations when checkpoints are saved: save_strategy = {saved}, eval_strategy = {evaluated}"
        )
        yield finding(c, "HF974", message, key, "save_strategy", "eval_strategy")


def choices_are_known(c: Configuration) -> Iterator[Problem]:
    """Choices are among those that TRL has."""
    choices_of = CHOICES | (ENGINE_CHOICES if c.known("use_vllm") is True else {})
    for key, choices in choices_of.items():
        if key not in c.explicit or not c.has(key):
            continue
        value = c.known(key, otherwise=choices[0])
        if str(value) not in choices and (value is not None or c.defaults.get(key) is not None):
            near = get_close_matches(str(value), choices, n=1, cutoff=0.6)
            sentence, fixes = setting_fix(c, key, near[0]) if near else ("", ())
            message = f"{key} = {value_text(value)} is not one of {', '.join(choices)}"
            yield finding(c, "HF972", message, key, advice=(sentence,) if sentence else (), fixes=fixes)


def groups_have_members(c: Configuration) -> Iterator[Problem]:
    """A group has at least two completions."""
    if c.size(GROUP) < 2:
        yield finding(
            c,
            "HF972",
            f"{GROUP} = {c.size(GROUP)}: TRL wants two completions to a prompt or more, to compare them",
            GROUP,
            advice=(f"set {GROUP} to 2 or more",),
        )


def a_generation_is_given_once(c: Configuration) -> Iterator[Problem]:
    """A generation's size is given once."""
    if c.value(GENERATION) is not None and c.value(STEPS) is not None:
        yield finding(
            c,
            "HF974",
            f"{GENERATION} = {c.value(GENERATION)} and {STEPS} = {c.value(STEPS)} exclude each other: both say how "
            "many completions a generation has",
            GENERATION,
            STEPS,
            advice=(f"leave out {GENERATION}, or {STEPS}",),
        )


def generations_are_whole_micro_batches(c: Configuration) -> Iterator[Problem]:
    """A generation is a whole number of micro-batches."""
    if c.value(GENERATION) is None or c.value(STEPS) is not None:
        return
    total, per_process = c.size(GENERATION), c.size(ROWS)
    divisor, text = per_process, f"{ROWS} = {per_process}"
    if total % per_process == 0:  # with any number of processes, it must be a multiple of this
        divisor = micro_batch(c)
        text = f"{ROWS} x {PROCESSES} = {per_process} x {c.size(PROCESSES)} = {divisor}"
    if total % divisor:
        yield finding(
            c,
            "HF976",
            f"{GENERATION} = {total} completions are not whole micro-batches of {text}: {total} % {divisor} = "
            f"{total % divisor}",
            GENERATION,
            ROWS,
            *((PROCESSES,) if divisor != per_process else ()),
            repairs=(GENERATION, ROWS),
        )


def generations_are_whole_groups(c: Configuration) -> Iterator[Problem]:
    """A generation is a whole number of groups."""
    if c.value(GENERATION) is not None and c.value(STEPS) is not None:
        return
    total, group = generation(c), c.size(GROUP)
    if total % group:
        candidates = [GENERATION] if c.value(GENERATION) is not None else [ROWS, ACCUMULATION, STEPS, PROCESSES]
        if c.value(STEPS) is not None:
            candidates.remove(ACCUMULATION)
        keys = [key for key in candidates if c.known(key) is not None]
        yield finding(
            c,
            "HF976",
            f"a generation has {generation_text(c)} completions, which are not whole groups of {GROUP} = {group}: "
            f"{total} % {group} = {total % group}",
            GROUP,
            *keys,
            repairs=(GROUP, *keys),
        )


def evaluation_has_whole_groups(c: Configuration) -> Iterator[Problem]:
    """An evaluation batch is a whole number of groups."""
    if c.value("eval_strategy") in (None, "no", False):
        return
    key, groups = "per_device_eval_batch_size", "num_generations_eval"
    groups = GROUP if c.value(groups) is None else groups
    total = c.size(key) * c.size(PROCESSES)
    if total % c.size(groups):
        yield finding(
            c,
            "HF976",
            f"an evaluation batch has {key} x {PROCESSES} = {c.size(key)} x {c.size(PROCESSES)} = {total} completions, "
            f"which are not whole groups of {groups} = {c.size(groups)}: {total} % {c.size(groups)} = "
            f"{total % c.size(groups)}",
            key,
            groups,
            PROCESSES,
            "eval_strategy",
            repairs=(key, groups),
        )


def batches_keep_their_size(c: Configuration) -> Iterator[Problem]:
    """A batch keeps its size, since it holds whole groups."""
    key = "auto_find_batch_size"
    if c.value(key) is True:
        sentence, fixes = setting_fix(c, key, False)
        message = f"{key} = True: a smaller batch would cut groups, and TRL refuses it"
        yield finding(c, "HF974", message, key, advice=(f"{sentence}, and lower {ROWS}",), fixes=fixes)


def uploads_have_completions(c: Configuration) -> Iterator[Problem]:
    """Completions that are uploaded are logged."""
    key, switch = "log_completions_hub_repo", "log_completions"
    if c.has(key) and c.value(key) is not None and not c.value(switch):
        sentence, fixes = setting_fix(c, switch, True)
        yield finding(c, "HF974", f"{key} needs {switch}", key, switch, advice=(sentence,), fixes=fixes)


def references_are_there_to_sync(c: Configuration) -> Iterator[Problem]:
    """A reference model that follows the policy exists."""
    if c.value("sync_ref_model") is True and c.value("beta") == 0:
        yield finding(
            c,
            "HF974",
            "sync_ref_model = True, and beta = 0 has no reference model",
            "sync_ref_model",
            "beta",
            advice=("set beta above 0, or leave out sync_ref_model",),
        )


def engines_divide_processes(c: Configuration) -> Iterator[Problem]:
    """The processes hold whole engines."""
    key = "vllm_tensor_parallel_size"
    if c.value("use_vllm") is not True or c.value("vllm_mode") != "colocate" or c.size(key) == 1:
        return
    if c.size(PROCESSES) % c.size(key):
        yield finding(
            c,
            "HF977",
            f"an engine takes {key} = {c.size(key)} of {c.size(PROCESSES)} processes, which are not a whole number of "
            "engines",
            key,
            PROCESSES,
            repairs=(key, PROCESSES),
        )


def truncations_have_a_bound(c: Configuration) -> Iterator[Problem]:
    """The correction of the engine's log-probs has bounds that go together."""
    low, high, mode = (f"vllm_importance_sampling_{name}" for name in ("clip_min", "clip_max", "mode"))
    if not all(c.has(key) for key in (low, high, mode)):
        return
    lower, upper = c.value(low), c.value(high)
    if isinstance(lower, int | float) and isinstance(upper, int | float) and lower >= upper:
        yield finding(c, "HF974", f"{low} = {lower} is not below {high} = {upper}", low, high)
    truncates = str(c.value(mode)).endswith("_truncate") and c.value("vllm_importance_sampling_correction")
    if truncates and lower is None and upper is None and c.known("vllm_importance_sampling_cap") is None:
        yield finding(c, "HF974", f"{mode} = {c.value(mode)} needs {high} or {low}", mode, high)


def rewards_have_weights(c: Configuration) -> Iterator[Problem]:
    """Each reward function has a weight."""
    weights, functions, model = "reward_weights", "reward_funcs", "reward_model_name_or_path"
    if not c.has(functions) or c.value(weights) is None:
        return
    count = len(_as_list(c.value(functions))) + (c.value(model) is not None)
    if count and len(_as_list(c.value(weights))) != count:
        message = f"{weights} has {len(_as_list(c.value(weights)))} weights, and there are {count} reward functions"
        yield finding(c, "HF974", message, weights, functions)


def _as_list(value: Any) -> list[Any]:
    """The values of an argument that takes several."""
    return value if isinstance(value, list) else [] if value is None else [value]


def rewards_can_be_found(c: Configuration) -> Iterator[Problem]:
    """A reward function has a name of TRL's own, or a path to import."""
    key = "reward_funcs"
    for name in _as_list(c.value(key)) if c.has(key) else []:
        if isinstance(name, str) and "." not in name and name not in REWARDS:
            near = get_close_matches(name, REWARDS, n=1, cutoff=0.6)
            yield finding(
                c,
                "HF972",
                f"{key}: '{name}' is not one of {', '.join(REWARDS)}, and no path such as module.function",
                key,
                advice=(f"did you mean {near[0]}?",) if near else (),
            )


def contexts_hold_a_completion(c: Configuration) -> Iterator[Problem]:
    """The engine's context holds a completion."""
    key, longest = "vllm_max_model_length", "max_completion_length"
    if c.value("use_vllm") is not True or c.value("vllm_mode") != "colocate" or not is_integer(c.value(key)):
        return
    if c.size(key) <= c.size(longest):
        yield finding(
            c,
            "HF978",
            f"{key} = {c.size(key)} tokens hold a prompt and a completion, and {longest} = {c.size(longest)} leaves no "
            "room for a prompt",
            key,
            longest,
            advice=(f"set {key} above {c.size(longest)}, by the longest prompt",),
        )


RULES: tuple[Rule, ...] = (
    sizes_are_positive,
    numbers_are_numbers,
    samples_are_drawn,
    runs_have_steps,
    precisions_exclude_each_other,
    best_models_are_evaluated,
    choices_are_known,
    groups_have_members,
    a_generation_is_given_once,
    generations_are_whole_micro_batches,
    generations_are_whole_groups,
    evaluation_has_whole_groups,
    batches_keep_their_size,
    uploads_have_completions,
    references_are_there_to_sync,
    engines_divide_processes,
    truncations_have_a_bound,
    rewards_have_weights,
    rewards_can_be_found,
    contexts_hold_a_completion,
)
