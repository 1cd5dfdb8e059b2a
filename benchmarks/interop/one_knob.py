"""Real configurations with one knob changed, drawn without a look at hfdsl's rules, and what the libraries say of them.

Mutants are drawn and judged by the library first, and hashed; hfdsl is asked last::

    python benchmarks/interop/one_knob.py draw verl CHECKOUT > mutants.jsonl
    python benchmarks/interop/verl_trial.py < mutants.jsonl > verdicts.jsonl      # with a Python that has verl
    python benchmarks/interop/one_knob.py hash mutants.jsonl verdicts.jsonl
    python benchmarks/interop/one_knob.py judge mutants.jsonl verdicts.jsonl

``LIBRARY_trial.py`` is beside this file for each of ``verl``, ``trl``, ``nemo_rl`` and ``openrlhf``. The draw
depends on the checkout and the seed alone. A verdict has the words of the library's own code; its stage is ``reading``
where only its source says what would happen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

SEED = "one knob"
INTEGER, NUMBER = re.compile(r"-?\d+"), re.compile(r"-?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)")
BOOLEAN = re.compile(r"true|false", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Knobs:
    """What is changed in the runs of a library."""

    mutants: int
    """Mutants of each base."""
    changed: re.Pattern[str]
    """Keys of a base that are changed."""
    added: dict[str, str]
    """Keys with their defaults, which are changed where a base does not set them."""
    swapped: tuple[tuple[str, str], ...]
    """Pairs of keys whose values are swapped."""
    contradictions: tuple[tuple[str, str], ...]
    """Settings that contradict others."""


ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
VERL = Knobs(
    mutants=9,
    changed=re.compile(

              r"(data\.\w*(batch_size|length|shuffle|samples|seed|workers)$|actor_rollout_ref\.(actor|rollout|ref)\.|critic\.|"
        r"algorithm\.|trainer\.(nnodes|n_gpus|total|save|test|val_|critic_w|balance|resume|use_v1|logger|v1))"
        r"(?!.*(path|dir|name|kwargs|override|custom|freeze|quant))"
    ),
    added={
        f"{ACTOR}.clip_ratio": "0.2", f"{ACTOR}.clip_ratio_c": "3.0", f"{ACTOR}.entropy_coeff": "0",
        f"{ACTOR}.loss_agg_mode": "token-mean", f"{ACTOR}.ppo_epochs": "1", f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.kl_loss_coef": "0.001", f"{ACTOR}.use_kl_loss": "false", f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{ACTOR}.optim.weight_decay": "0.01", f"{ACTOR}.optim.lr": "1e-6", f"{ACTOR}.optim.clip_grad": "1.0",
        f"{ACTOR}.optim.lr_warmup_steps": "-1", f"{ACTOR}.optim.lr_warmup_steps_ratio": "0.0",
        f"{ACTOR}.shuffle": "false", f"{ACTOR}.use_dynamic_bsz": "false", f"{ACTOR}.loss_scale_factor": "null",
        f"{ACTOR}.ppo_max_token_len_per_gpu": "16384", f"{ACTOR}.data_loader_seed": "42",
        f"{ROLLOUT}.n": "1", f"{ROLLOUT}.temperature": "1.0", f"{ROLLOUT}.top_p": "1", f"{ROLLOUT}.top_k": "-1",
        f"{ROLLOUT}.data_parallel_size": "1", f"{ROLLOUT}.pipeline_model_parallel_size": "1",
        f"{ROLLOUT}.expert_parallel_size": "1", f"{ROLLOUT}.gpu_memory_utilization": "0.5",
        f"{ROLLOUT}.max_num_seqs": "1024", f"{ROLLOUT}.max_num_batched_tokens": "8192", f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.tensor_model_parallel_size": "2", f"{ROLLOUT}.val_kwargs.n": "1", f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.agent.num_workers": "8", f"{ROLLOUT}.calculate_log_probs": "false",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "null", f"{ROLLOUT}.checkpoint_engine.backend": "naive",
        "algorithm.adv_estimator": "gae", "algorithm.gamma": "1.0", "algorithm.lam": "1.0",
        "algorithm.use_kl_in_reward": "false", "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "fixed",
        "algorithm.kl_ctrl.kl_coef": "0.001", "algorithm.kl_ctrl.horizon": "10000",
        "algorithm.norm_adv_by_std_in_grpo": "true", "data.train_batch_size": "1024", "data.shuffle": "true",
        "data.max_prompt_length": "512", "data.max_response_length": "512", "data.dataloader_num_workers": "8",
        "data.seed": "null", "trainer.nnodes": "1", "trainer.n_gpus_per_node": "8", "trainer.total_epochs": "30",
        "trainer.save_freq": "-1", "trainer.test_freq": "-1", "trainer.critic_warmup": "0",
        "trainer.resume_mode": "auto", "trainer.total_training_steps": "null", "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.max_off_policy_threshold": "1", "trainer.v1.sampler.max_off_policy_strategy": "drop",
    },
    swapped=(
        ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"),
        (f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        ("trainer.nnodes", "trainer.n_gpus_per_node"), ("data.max_prompt_length", "data.max_response_length"),
        (f"{ROLLOUT}.n", f"{ROLLOUT}.tensor_model_parallel_size"),
        (f"{ACTOR}.megatron.tensor_model_parallel_size", f"{ACTOR}.megatron.pipeline_model_parallel_size"),
    ),
    contradictions=(
        (f"{ACTOR}.ppo_micro_batch_size", "8"), (f"{ROLLOUT}.log_prob_micro_batch_size", "8"),
        (f"{REF}.log_prob_micro_batch_size", "8"), (f"{ROLLOUT}.mode", "sync"), (f"{ACTOR}.strategy", "megatron"),
        (f"{ACTOR}.strategy", "fsdp3"), ("trainer.v1.trainer_mode", "separate_async"), ("critic.enable", "false"),
        ("critic.enable", "true"), (f"{ROLLOUT}.moe_tensor_parallel_size", "2"), (f"{ROLLOUT}.expert_parallel_size",
        "4"),
        ("algorithm.filter_groups.enable", "true"), (f"{ROLLOUT}.disaggregation.enabled", "true"),
        ("reward.reward_model.enable_resource_pool", "true"), ("actor_rollout_ref.model.use_remove_padding", "false"),
        (f"{ACTOR}.ulysses_sequence_parallel_size", "2"), (f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", "3"),
        (f"{ACTOR}.fsdp_config.fsdp_size", "3"), (f"{ROLLOUT}.max_model_len", "64"), ("trainer.resume_mode",
        "resume_path"),
        (f"{ROLLOUT}.trace.max_samples_per_step_per_worker", "-1"), (f"{ROLLOUT}.val_kwargs.do_sample", "true"),
    ),
)  # fmt: skip  # a table

POLICY, VLLM = "policy", "policy.generation.vllm_cfg"
NEMO_RL = Knobs(
    mutants=7,
    changed=re.compile(
        r"(grpo|loss_fn|policy|cluster|checkpointing)\.(?!.*(model_name|dir|name$|env_vars|tokenizer|fp8|kwargs|"
        r"optimizer\.name|scheduler|router|moe|lora|draft|logger))|data\.(max_input|shuffle|num_workers)"
    ),
    added={
        "grpo.num_prompts_per_step": "32", "grpo.num_generations_per_prompt": "16", "grpo.max_num_steps": "100",
        "grpo.max_rollout_turns": "1", "grpo.val_period": "10", "grpo.val_batch_size": "256", "grpo.seed": "42",
        "grpo.normalize_rewards": "true", "loss_fn.reference_policy_kl_penalty": "0.01",
        "loss_fn.ratio_clip_min": "0.2",
        "loss_fn.token_level_loss": "true", "policy.train_global_batch_size": "512", "policy.precision": "bfloat16",
        "policy.train_micro_batch_size": "4", "policy.logprob_batch_size": "4", "policy.max_grad_norm": "1.0",
        "policy.max_total_sequence_length": "512", "policy.generation.temperature": "1.0",
        "policy.generation.top_p": "1.0", "policy.generation.max_new_tokens": "512", f"{VLLM}.max_model_len": "512",
        f"{VLLM}.gpu_memory_utilization": "0.6", f"{VLLM}.tensor_parallel_size": "1", "cluster.gpus_per_node": "8",
        "cluster.num_nodes": "1", "checkpointing.save_period": "10", "checkpointing.keep_top_k": "3",
    },
    swapped=(
        ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"),
        ("policy.train_global_batch_size", "policy.train_micro_batch_size"),
        ("cluster.gpus_per_node", "cluster.num_nodes"),
        ("policy.max_total_sequence_length", "policy.train_global_batch_size"),
    ),
    contradictions=(
        ("policy.dtensor_cfg.enabled", "false"), ("policy.megatron_cfg.enabled", "true"),
        ("policy.dynamic_batching.enabled", "true"), ("policy.sequence_packing.enabled", "true"),
        ("policy.generation.colocated.enabled", "false"), ("grpo.async_grpo.enabled", "true"),
        (f"{VLLM}.async_engine", "true"), ("policy.generation.backend", "sglang"), ("grpo.use_dynamic_sampling",
        "true"),
        (f"{VLLM}.pipeline_parallel_size", "2"), ("policy.dtensor_cfg.context_parallel_size", "3"),
        ("policy.dtensor_cfg.sequence_parallel", "true"), ("loss_fn.disable_ppo_ratio", "true"),
        ("loss_fn.force_on_policy_ratio", "true"), ("loss_fn.use_importance_sampling_correction", "false"),
        ("loss_fn.sequence_level_importance_ratios", "true"), ("loss_fn.truncated_importance_sampling_ratio", "0.0"),
        ("grpo.overlong_filtering", "true"), ("policy.generation.top_k", "0"),
    ),
)  # fmt: skip  # a table

OPENRLHF = Knobs(
    mutants=80,
    changed=re.compile(
        r"(rollout|train|actor|ref|critic|reward|vllm|ds|algo|data|ckpt|eval|adam|fsdp)\."
        r"(?!.*(path|name|dataset|key|url|template|dir|wandb|tensorboard))"
    ),
    added={
        "rollout.batch_size": "1024", "rollout.n_samples_per_prompt": "1", "rollout.micro_batch_size": "8",
        "rollout.temperature": "1.0", "rollout.top_p": "1.0", "rollout.max_new_tokens": "1024",
        "train.batch_size": "128", "train.micro_batch_size": "4", "train.max_epochs": "1", "train.num_episodes": "1",
        "train.seed": "42", "actor.num_nodes": "1", "actor.num_gpus_per_node": "8", "actor.eps_clip": "0.2",
        "actor.adam.lr": "1e-6", "actor.max_norm": "1.0", "critic.adam.lr": "9e-6", "vllm.num_engines": "1",
        "vllm.tensor_parallel_size": "1", "vllm.gpu_memory_utilization": "0.95", "ds.zero_stage": "2",
        "ds.tensor_parallel_size": "1", "ds.ring_attn_size": "1", "ds.ring_attn_head_stride": "1",
        "algo.kl.init_coef": "0.01", "algo.kl.estimator": "k1", "algo.advantage.gamma": "1",
        "algo.advantage.lambd": "1",
        "algo.advantage.estimator": "gae", "data.max_len": "2048", "ckpt.save_steps": "-1", "eval.steps": "-1",
    },
    swapped=(
        ("rollout.batch_size", "train.batch_size"), ("train.batch_size", "train.micro_batch_size"),
        ("vllm.num_engines", "vllm.tensor_parallel_size"), ("actor.num_nodes", "actor.num_gpus_per_node"),
        ("rollout.n_samples_per_prompt", "rollout.batch_size"),
    ),
    contradictions=(
        ("train.colocate_all", ""), ("train.colocate_actor_ref", ""), ("train.colocate_critic_reward", ""),
        ("train.async_enable", ""), ("train.partial_rollout_enable", ""), ("train.dynamic_batch_enable", ""),
        ("vllm.enable_sleep", ""), ("ds.enable_sleep", ""), ("ds.packing_samples", ""), ("ds.zero_stage", "4"),
        ("algo.dynamic_filtering_enable", ""), ("algo.kl.use_loss", ""), ("ds.ring_attn_size", "2"),
        ("ds.tensor_parallel_size", "2"), ("vllm.sync_backend", "gloo"), ("actor.eps_clip_low_high", "0.2 0.28"),
        ("vllm.enable_prefix_caching", ""), ("critic.save_value_network", ""),
        ("algo.advantage.is_correction_enable", ""),
        ("algo.advantage.is_correction_threshold", "5 0.5"),
    ),
)  # fmt: skip  # a table

TRL = Knobs(
    mutants=24,
    changed=re.compile(r"(?!.*(model_name|dataset|output_dir|reward_funcs|config$)).+"),
    added={
        "per_device_train_batch_size": "8", "gradient_accumulation_steps": "1", "num_generations": "8",
        "learning_rate": "1e-6", "beta": "0.0", "epsilon": "0.2", "loss_type": "dapo", "scale_rewards": "group",
        "temperature": "1.0", "top_p": "1.0", "top_k": "0", "max_completion_length": "256", "num_iterations": "1",
        "max_steps": "-1", "num_train_epochs": "3.0", "warmup_steps": "0", "max_grad_norm": "1.0", "seed": "42",
        "bf16": "false", "gradient_checkpointing": "true", "lr_scheduler_type": "linear", "save_strategy": "steps",
        "save_steps": "500", "logging_steps": "10", "eval_strategy": "no", "optim": "adamw_torch", "use_vllm": "false",
        "vllm_mode": "colocate", "vllm_gpu_memory_utilization": "0.3", "vllm_tensor_parallel_size": "1",
        "steps_per_generation": "1", "mask_truncated_completions": "false", "importance_sampling_level": "token",
        "repetition_penalty": "1.0", "shuffle_dataset": "true", "sync_ref_model": "false", "use_peft": "false",
        "lora_r": "16", "lora_alpha": "32", "dtype": "float32", "log_completions": "false", "weight_decay": "0.0",
    },
    swapped=(
        ("per_device_train_batch_size", "num_generations"), ("gradient_accumulation_steps", "num_generations"),
        ("per_device_train_batch_size", "gradient_accumulation_steps"), ("save_steps", "max_steps"),
    ),
    contradictions=(
        ("generation_batch_size", "12"), ("steps_per_generation", "3"), ("eval_strategy", "steps"),
        ("load_best_model_at_end", "true"), ("fp16", "true"), ("tf32", "true"), ("use_liger_kernel", "true"),
        ("delta", "0.1"), ("epsilon_high", "-1"), ("reward_weights", "0.5 0.5"), ("num_generations_eval", "3"),
        ("top_entropy_quantile", "1.5"), ("loss_type", "gspo"), ("importance_sampling_level", "sentence"),
        ("scale_rewards", "batch"), ("load_in_4bit", "true"), ("push_to_hub", "true"), ("max_prompt_length", "64"),
        ("multi_objective_aggregation", "product"), ("log_completions_hub_repo", "name/repository"),
        ("ref_model_mixup_alpha", "2"), ("reward_funcs", "accuracy"), ("reward_funcs", "rewards.missing"),
        ("cast_lm_head_to_fp32", "true"), ("deepspeed", "missing.json"),
    ),
)  # fmt: skip  # a table
LIBRARIES = {"verl": VERL, "nemo-rl": NEMO_RL, "openrlhf": OPENRLHF, "trl": TRL}

COMMON = "--model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/DeepMath-103K --output_dir out"
REWARD = "--reward_funcs accuracy_reward"
TRL_BASES = tuple(
    """
    --per_device_train_batch_size 4 --num_generations 4 --max_steps 2 --max_completion_length 8 --learning_rate 1e-5
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --num_generations 4 --beta 0.04 --loss_type grpo
    --per_device_train_batch_size 8 --num_generations 8 --loss_type dr_grpo --scale_rewards none --epsilon_high 0.28
    --per_device_train_batch_size 2 --num_generations 2 --steps_per_generation 4 \
--gradient_accumulation_steps 4 --num_iterations 2 --importance_sampling_level sequence \
--epsilon 3e-4 --temperature 0.9 --top_p 0.95
    --per_device_train_batch_size 4 --generation_batch_size 8 --num_generations 4 \
--save_strategy steps --save_steps 5 --logging_steps 1 --lr_scheduler_type cosine --warmup_steps 2 --weight_decay 0.1
    --per_device_train_batch_size 4 --num_generations 4 --use_peft true --lora_r 8 --lora_alpha 16 --bf16 true
    --per_device_train_batch_size 4 --num_generations 2 --loss_type bnpo \
--mask_truncated_completions true --gradient_checkpointing true --max_grad_norm 0.2 --seed 7
    --per_device_train_batch_size 6 --num_generations 3 --loss_type cispo --epsilon_high 5.0 --num_train_epochs 1
    """.strip().splitlines()
)
"""Commands for TRL, which has no examples of its command line: batches, losses, schedules, adapters."""


def numbers(value: float) -> dict[str, str]:
    """Other numbers: off by one, doubled, out of range."""
    near = {"one more": value + 1, "one less": value - 1, "doubled": value * 2, "tripled": value * 3,
            "halved": value / 2, "zero": 0, "negative": -value or -1, "huge": value * 1000 + 1000}  # fmt: skip
    whole = isinstance(value, int)
    return {kind: str(int(number) if whole else round(number, 12)) for kind, number in near.items()}


def other_values(text: str) -> Iterator[tuple[str, str]]:
    """Other values of a knob, each with the kind of the change."""
    if INTEGER.fullmatch(text):
        yield from numbers(int(text)).items()
        yield from (("a fraction", f"{text}.5"), ("a switch for a number", "true"))
    elif NUMBER.fullmatch(text):
        yield from numbers(float(text)).items()
        yield from (("another notation", f"{float(text):.3e}"), ("a switch for a number", "true"))
    elif BOOLEAN.fullmatch(text):
        yield "switched", "false" if text.lower() == "true" else "true"
        yield from (("in words", word) for word in ("yes", "off"))
        yield from (("no switch", "maybe"), ("a number for a switch", "2"))
    elif text.isidentifier() or re.fullmatch(r"[\w-]+", text):
        yield from (("misspelled", text[:-1]), ("upper case", text.upper()), ("another word", "default"))
        yield "a number for a word", "3"
    if INTEGER.fullmatch(text) or NUMBER.fullmatch(text):
        yield from (("a text", f"'{text}'"), ("a word for a number", "many"), ("a list", f"[{text}]"))
    yield from (("null", "null"), ("empty", "''"))


def misspelled_keys(key: str) -> Iterator[str]:
    """A key with a letter less, in another spelling, or in another table."""
    head, dot, last = key.rpartition(".")
    yield f"{head}{dot}{last[:-1]}"
    if "_" in last:
        yield f"{head}{dot}{last.replace('_', '', 1)}"
        yield f"{head}{dot}{last.replace('_', '-', 1)}"
    if dot:
        yield last
        yield f"{head}s.{last}"


Settings = list[tuple[str, str]]


def changes(settings: Settings, knobs: Knobs) -> Iterator[tuple[str, str, Settings]]:
    """Every change of a base: its kind, its words, and the settings after it."""
    present = dict(settings)
    values = {key: text for key, text in present.items() if knobs.changed.match(key.lstrip("+~"))}
    values |= {key: text for key, text in knobs.added.items() if key not in present and f"+{key}" not in present}

    def changed(key: str, text: str) -> Settings:
        if key in present:
            return [(name, text if name == key else old) for name, old in settings]
        return [*settings, (key, text)]

    for key, value in values.items():
        for kind, text in other_values(value):
            if text != value:
                yield kind, f"{key}={text}", changed(key, text)
    for key in (key for key in values if key in present):
        yield "dropped", f"~{key}", [pair for pair in settings if pair[0] != key]
        for name in misspelled_keys(key):
            yield "a misspelled key", f"{key} -> {name}", [(name if k == key else k, v) for k, v in settings]
    for first, second in knobs.swapped:
        if {first, second} <= present.keys() and present[first] != present[second]:
            swapped = {first: present[second], second: present[first]}
            yield "swapped", f"{first} <-> {second}", [(key, swapped.get(key, text)) for key, text in settings]
    for key, text in knobs.contradictions:
        if present.get(key) != text:
            yield "a contradiction", f"{key}={text}", changed(key, text)


def draw(identity: str, settings: Settings, knobs: Knobs, seed: str) -> Iterator[tuple[str, str, Settings]]:
    """Changes of a base, each kind of change as often as others."""
    source = random.Random(f"{seed} {identity}")  # a repeatable draw
    kinds: dict[str, list[tuple[str, str, Settings]]] = {}
    for change in changes(settings, knobs):
        kinds.setdefault(change[0], []).append(change)
    for alike in kinds.values():
        source.shuffle(alike)
    mutant_count = 0
    while kinds and mutant_count < knobs.mutants:
        for kind in source.sample(sorted(kinds), len(kinds)):
            if mutant_count < knobs.mutants:
                yield kinds[kind].pop()
                mutant_count += 1
            if not kinds[kind]:
                del kinds[kind]


def options(words: list[str]) -> Settings:
    """Options of a command with their values; a switch has none."""
    settings: Settings = []
    for word in words:
        if word.startswith("--"):
            settings.append((word[2:].split("=", 1)[0], word.split("=", 1)[1] if "=" in word else ""))
        elif settings:
            key, text = settings[-1]
            settings[-1] = (key, f"{text} {shlex.quote(word)}".strip())
    return settings


def option_words(settings: Settings) -> list[str]:
    """The words of a command."""
    return [word for key, text in settings for word in (f"--{key}", *shlex.split(text))]


def commands(folder: Path, library: str) -> Iterator[tuple[str, list[str], dict[str, Any]]]:
    """The runs that scripts of a folder start, without words that only a shell knows."""
    from hfdsl.interop.openrlhf import reading as openrlhf
    from hfdsl.interop.shell_text import text_of
    from hfdsl.interop.shell_values import read_script
    from hfdsl.interop.text import ReadError, read_source
    from hfdsl.interop.verl import reading as verl

    program, arguments = {
        "verl": ("main_ppo", verl.trainer_arguments),
        "openrlhf": ("train_ppo_ray", openrlhf.trainer_arguments),
    }[library]
    for path in sorted(folder.rglob("*.sh")):
        if program not in path.read_text("utf-8", errors="replace"):
            continue
        try:
            launches = read_script(read_source(path), None, {"DEVICE": "gpu"}).launches
        except ReadError:
            continue
        for number, launch in enumerate(launches):
            start = arguments(launch.words)
            words = [text_of(word) for word in launch.words[start or 0 :]]
            hole = [] if library == "verl" else ["unknown"]
            known_words = [text for word in words for text in (hole if word is None else [word])]
            if start is not None:
                megatron = any("ppo_megatron" in word for word in known_words)
                yield f"{path.relative_to(folder)}#{number}", known_words, {"megatron": megatron}


def bases(library: str, folder: Path | None) -> Iterator[tuple[str, Settings, dict[str, Any]]]:
    """Real configurations: a name, settings, and what else a question has."""
    if library == "trl":
        for number, base in enumerate(TRL_BASES):
            for form in ("command", "yaml"):
                yield f"{form} {number}", options(shlex.split(f"{COMMON} {REWARD} {base}")), {"form": form}
        return
    assert folder is not None  # guards for the type checker
    if library == "nemo-rl":
        yield from nemo_rl_bases(folder)
        return
    for name, words, more in commands(folder, library):
        if library == "verl":
            pairs = [word.partition("=") for word in words if "=" in word and not word.startswith("-")]
            config = "ppo_megatron_trainer" if more["megatron"] else "ppo_trainer"
            yield name, [(key, text) for key, _, text in pairs], {"name": config}
        else:
            yield name, options(words), {}


def nemo_rl_bases(folder: Path) -> Iterator[tuple[str, Settings, dict[str, Any]]]:
    """Every fourth of NeMo-RL's examples of GRPO, with the values that it inherits."""
    import yaml

    def values(path: Path) -> dict[str, str]:
        tree = yaml.safe_load(path.read_text("utf-8"))
        parents = tree.pop("defaults", [])
        merged: dict[str, str] = {}
        for parent in [parents] if isinstance(parents, str) else parents:
            merged |= values(path.parent / parent)
        return merged | leaves(tree)

    def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
        flat: dict[str, str] = {}
        for key, value in tree.items():
            if isinstance(value, dict):
                flat |= leaves(value, f"{prefix}{key}.")
            elif isinstance(value, str | int | float):
                flat[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
        return flat

    examples = []
    for path in sorted((folder / "examples").rglob("*.yaml")):
        try:
            if "grpo.num_prompts_per_step" in (settings := values(path)):
                examples.append((path, settings))
        except (OSError, TypeError, AttributeError, yaml.YAMLError):
            continue
    for path, settings in examples[::4]:
        plain = [(key, text) for key, text in settings.items() if "${" not in text]
        yield str(path.relative_to(folder)), plain, {"config": str(path.relative_to(folder))}


def questions(library: str, folder: Path | None, seed: str, every: int, mutants: int) -> Iterator[dict[str, Any]]:
    """Bases and their mutants, as the trials take them."""
    knobs = LIBRARIES[library]
    knobs = replace(knobs, mutants=mutants or knobs.mutants)
    for name, settings, more in islice(bases(library, folder), every // 2, None, every):
        for kind, change, mutant in (("base", "", settings), *draw(f"{library} {name}", settings, knobs, seed)):
            question: dict[str, Any] = {
                "id": f"{name} | {change}",
                "library": library,
                "base": name,
                "kind": kind,
                "change": change,
            }
            if library == "verl":
                question["overrides"] = [f"{key}={text}" for key, text in mutant]
            elif library == "nemo-rl":
                old, new = dict(settings), dict(mutant)
                question["overrides"] = [f"~{key}" for key in old if key not in new]
                added = {key: "" if key in old or kind != "a misspelled key" else "++" for key in new}
                question["overrides"] += [f"{added[k]}{k}={text}" for k, text in new.items() if old.get(k) != text]
            elif more.get("form") == "yaml":
                lists = {key: f"[{text}]" if key == "reward_funcs" else text or "true" for key, text in mutant}
                question["yaml"] = "".join(f"{key}: {text}\n" for key, text in lists.items())
            else:
                question["words"] = option_words([(key, "None" if t == "null" else t) for key, t in mutant])
            yield question | more


def file_of(question: dict[str, Any], checkout: Path, folder: Path) -> tuple[Path, list[str]]:
    """The file of a run, and its overrides."""
    if "config" in question:
        return checkout / question["config"], question["overrides"]
    if "yaml" in question:
        path = folder / "grpo.yaml"
        path.write_text(question["yaml"], "utf-8")
        return path, ["--num_processes", "1"]  # those of the trial
    programs = {"verl": "python3 -m verl.trainer.main_ppo", "trl": "trl grpo --num_processes 1", "openrlhf":
                "python3 -m openrlhf.cli.train_ppo_ray"}  # fmt: skip
    words = question.get("words") or [f"--config-name={question['name']}", *question["overrides"]]
    path = folder / "run.sh"
    lines = [programs[question["library"]], *map(shlex.quote, words)]
    path.write_text(" \\\n    ".join(lines) + "\n", "utf-8")
    return path, []


def judge(mutants: Path, verdicts: Path, checkout: Path, processes: int) -> None:
    """Ask hfdsl about mutants whose verdicts are known, and print the table and each disagreement."""
    from hfdsl.check.codes import CODES
    from hfdsl.interop.checking import report_on
    from hfdsl.interop.readers import LIBRARIES as READERS
    from hfdsl.interop.reading import Inputs
    from hfdsl.interop.text import COMMAND_LINE, ReadError, SourceText

    verdict_of = {verdict["id"]: verdict for line in verdicts.open() if (verdict := json.loads(line))}
    questions = [json.loads(line) for line in mutants.open()]
    accepted = {question["base"] for question in questions if question["kind"] == "base"
                and verdict_of.get(question["id"], {}).get("ok")}  # fmt: skip
    counts, kinds, seconds = Counter[str](), dict[str, Counter[str]](), list[float]()
    said_of_base: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        for number, question in enumerate(questions):
            verdict = verdict_of.get(question["id"])
            if verdict is None or question["base"] not in accepted:
                counts["no verdict" if verdict is None else "of a base that is refused"] += 1
                continue
            path, overrides = file_of(question, checkout, Path(name))
            reader = READERS[question["library"]]
            arguments = SourceText(COMMAND_LINE, shlex.join(overrides)) if overrides else None
            started = time.perf_counter()
            try:
                report = [f for reading in reader.read(Inputs(str(path), arguments))
                          for f in report_on(reader, reading, str(path))]  # fmt: skip
                findings = [(f.code, f.message) for f in report]
            except ReadError as error:
                findings = [("HF970", error.message)]
            seconds.append(time.perf_counter() - started)
            if question["kind"] == "base":
                said_of_base = findings
            else:
                findings = [finding for finding in findings if finding not in said_of_base]
            errors = [f for f in findings if CODES[f[0]].severity == "error"]
            wrong = verdict["ok"] and "wrong" in verdict
            if verdict["ok"] and not wrong:
                agreement = "accepted, blamed" if errors else "accepted, with a warning" if findings else "accepted"
            else:
                reported = findings if wrong else errors
                agreement = ("wrong" if wrong else "refused") + (", found" if reported else ", missed")
            group = "bases" if question["kind"] == "base" else "mutants"
            counts[f"{group}: {agreement}"] += 1
            kinds.setdefault(question["kind"], Counter())[agreement] += 1
            if agreement.endswith(("blamed", "missed", "warning")):
                words = verdict.get("error") or verdict.get("wrong") or ""
                row = (
                    agreement,
                    question["id"],
                    verdict.get("stage", ""),
                    words[:140].replace("\n", " "),
                    findings[:1],
                )
                sys.stdout.write(" | ".join(map(str, row)) + "\n")
            if processes and number % max(1, len(questions) // processes) == 0:
                time_process(path, overrides, question["library"])
    for group, count in sorted(counts.items()):
        sys.stdout.write(f"{group:40}{count:6}\n")
    for kind, agreements in sorted(kinds.items()):
        sys.stdout.write(f"{kind:28}{dict(sorted(agreements.items()))}\n")
    seconds.sort()
    sys.stdout.write(f"ms of a check: median {seconds[len(seconds) // 2] * 1e3:.0f}, longest {seconds[-1] * 1e3:.0f}\n")


def time_process(path: Path, overrides: list[str], library: str) -> None:
    """Print how long a check takes as a process."""
    command = [sys.executable, "-m", "hfdsl", "check", "--from", library, str(path), "--", *overrides]
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    status = subprocess.run(command, capture_output=True, check=False).returncode  # our own command
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    sys.stdout.write(f"process | {time.perf_counter() - started:.2f} s | {cpu:.2f} s of CPU | exit status {status}\n")


def digest(file: Path) -> str:
    """A hash of what a file says, without the seconds that it took."""
    lines = [json.loads(line) for line in file.open()]
    content = [json.dumps({key: value for key, value in line.items() if key != "s"}, sort_keys=True) for line in lines]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def main() -> None:
    """Draw, hash or judge."""
    parser = argparse.ArgumentParser()
    tasks = parser.add_subparsers(dest="task", required=True)
    drawing = tasks.add_parser("draw")
    drawing.add_argument("library", choices=sorted(LIBRARIES))
    drawing.add_argument("checkout", type=Path, nargs="?")
    drawing.add_argument("--seed", default=SEED, help="other words draw other mutants")
    drawing.add_argument("--every", type=int, default=1, help="take every so many bases")
    drawing.add_argument("--mutants", type=int, default=0, help="mutants of each base")
    hashing = tasks.add_parser("hash")
    hashing.add_argument("files", type=Path, nargs="+")
    judging = tasks.add_parser("judge")
    judging.add_argument("mutants", type=Path)
    judging.add_argument("verdicts", type=Path)
    judging.add_argument("--checkout", type=Path, default=Path())
    judging.add_argument("--processes", type=int, default=0, help="how many mutants are also timed as processes")
    arguments = parser.parse_args()
    if arguments.task == "draw":
        for question in questions(
            arguments.library, arguments.checkout, arguments.seed, arguments.every, arguments.mutants
        ):
            sys.stdout.write(json.dumps(question) + "\n")
    elif arguments.task == "hash":
        for file in arguments.files:
            sys.stdout.write(f"{digest(file)}  {file.name}\n")
    else:
        judge(arguments.mutants, arguments.verdicts, arguments.checkout, arguments.processes)


if __name__ == "__main__":
    main()
