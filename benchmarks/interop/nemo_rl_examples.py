"""NeMo-RL's example configurations, and mutants of them, against ``hfdsl check --from nemo-rl`` and NeMo-RL itself.

Three steps, of which the second runs with the Python of ``nemo_rl_library.py``::

    python benchmarks/interop/nemo_rl_examples.py ask CHECKOUT > questions.jsonl
    python benchmarks/interop/nemo_rl_oracle.py CHECKOUT < questions.jsonl > verdicts.jsonl
    python benchmarks/interop/nemo_rl_examples.py compare questions.jsonl verdicts.jsonl

``--mutants N`` takes N configurations that NeMo-RL accepts (of an earlier ``verdicts.jsonl``, ``--accepted``) and
changes one knob of each at a time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_examples import compare  # type: ignore[import-not-found, unused-ignore]  # beside this file

from hfdsl.interop.checking import report_on
from hfdsl.interop.nemo_rl.reading import read
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.text import COMMAND_LINE, ReadError, SourceText

POLICY, GENERATION, VLLM = "policy", "policy.generation", "policy.generation.vllm_cfg"
SIZES = (
    "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", f"{POLICY}.train_global_batch_size",
    f"{POLICY}.train_micro_batch_size", f"{POLICY}.logprob_batch_size", "cluster.gpus_per_node", "cluster.num_nodes",
    f"{POLICY}.dtensor_cfg.tensor_parallel_size", f"{POLICY}.dtensor_cfg.context_parallel_size",
    f"{POLICY}.megatron_cfg.tensor_model_parallel_size", f"{POLICY}.megatron_cfg.pipeline_model_parallel_size",
    f"{POLICY}.megatron_cfg.context_parallel_size", f"{VLLM}.tensor_parallel_size", f"{VLLM}.pipeline_parallel_size",
    f"{VLLM}.expert_parallel_size", f"{GENERATION}.colocated.resources.gpus_per_node",
    f"{GENERATION}.colocated.resources.num_nodes", "grpo.batch_multiplier",
)  # fmt: skip  # a list of keys
SWITCHES = (
    f"{POLICY}.sequence_packing.enabled", f"{POLICY}.dynamic_batching.enabled", f"{POLICY}.dtensor_cfg.enabled",
    f"{POLICY}.megatron_cfg.enabled", f"{GENERATION}.colocated.enabled", "grpo.async_grpo.enabled",
    "grpo.use_dynamic_sampling", "loss_fn.use_importance_sampling_correction", "loss_fn.force_on_policy_ratio",
    "loss_fn.sequence_level_importance_ratios", "loss_fn.token_level_loss", "loss_fn.use_cispo", f"{VLLM}.async_engine",
    "grpo.reward_shaping.enabled",
)  # fmt: skip  # a list of keys
TEXTS = (
    ("loss_fn.truncated_importance_sampling_type", "tis"), ("loss_fn.ratio_clip_c", "0.5"),
    (f"{VLLM}.precision", "fp8"),
    ("grpo.adv_estimator.name", "gropo"), (f"{GENERATION}.top_p", "0"), (f"{GENERATION}.top_k", "0"),
    ("checkpointing.metric_name", "val_reward"), ("grpo.num_prompts_per_step", "many"), ("grpo.seed", "null"),
    (f"{POLICY}.precision", "1"), (f"{VLLM}.kv_cache_dtype", "fp8"),
)  # fmt: skip  # pairs
CHANGES = (
    "grpo.num_prompt_per_step=32", f"{POLICY}.train_globalbatch_size=64", "+grpo.seed=1", "~grpo.max_num_steps",
    f"~{POLICY}.train_micro_batch_size", "~cluster", "++grpo.skip_reference_policy_logprobs_calculation=true",
)  # fmt: skip  # overrides


def question(identity: str, path: Path, overrides: list[str]) -> tuple[dict[str, Any], Configuration]:
    """A run with what hfdsl says of it."""
    started = time.perf_counter()
    arguments = SourceText(COMMAND_LINE, shlex.join(overrides)) if overrides else None
    [reading] = read(Inputs(str(path), arguments))
    report = report_on(LIBRARIES["nemo-rl"], reading, identity)
    content = {
        "id": identity,
        "config": str(path),
        "overrides": overrides,
        "findings": [[f.code, f.message, f.primary.span.line] for f in report],
        "not_judged": list(report.coverage.not_judged),
        "seconds": time.perf_counter() - started,
    }
    return content, reading.configuration


def examples(folder: Path) -> Iterator[dict[str, Any]]:
    """Every configuration of the folder; those that cannot be read as well."""
    for path in sorted(folder.rglob("*.yaml")):
        name = str(path.relative_to(folder))
        try:
            yield question(name, path, [])[0]
        except ReadError as error:
            yield {"id": name, "unread": error.message}


def mutants(original: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A configuration with one knob changed at a time."""
    path = Path(original["config"])
    configuration = question(original["id"], path, [])[1]
    changes = list[str]()
    for key in SIZES:
        if is_integer(value := configuration.known(key)):
            others = dict.fromkeys((value + 1, value - 1, value * 2, value * 3, max(1, value // 2), 0))
            changes += [f"{key}={replacement}" for replacement in others if replacement != value]
    for key in SWITCHES:
        if isinstance(value := configuration.known(key), bool):
            changes.append(f"{key}={str(not value).lower()}")
    changes += [f"{key}={text}" for key, text in TEXTS if configuration.has(key)]
    for change in (*changes, *CHANGES):
        yield question(f"{original['id']} {change}", path, [change])[0]


def main() -> None:
    """Ask or compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["ask", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--accepted", type=Path)
    arguments = parser.parse_args()
    if arguments.task == "compare":
        questions_asked, answered = ([json.loads(line) for line in file.open()] for file in arguments.files)
        compare(questions_asked, {verdict["id"]: verdict for verdict in answered}, "NeMo-RL")
        return
    questions = list(examples(arguments.files[0] / "examples"))
    if arguments.mutants:
        accepted = {v["id"] for line in arguments.accepted.open() if (v := json.loads(line))["ok"]}
        chosen = [q for q in questions if q["id"] in accepted]
        chosen = chosen[:: max(1, len(chosen) // arguments.mutants)][: arguments.mutants]
        questions = [mutant for original in chosen for mutant in mutants(original)]
    for question in questions:
        print(json.dumps(question))


if __name__ == "__main__":
    main()
