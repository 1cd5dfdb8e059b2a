"""What OpenRLHF's own code says of the mutants of ``one_knob.py``, without GPUs.

Run with a checkout of OpenRLHF, of which nothing needs to be installed::

    python benchmarks/interop/openrlhf_trial.py CHECKOUT < mutants.jsonl > verdicts.jsonl

The verdict is that of ``openrlhf_examples.py``: the parser, the checks and ``train`` are OpenRLHF's; what processes and
engines would refuse is repeated by reading, here with the ranges of optimizers and of sampling.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openrlhf_examples as examples  # type: ignore[import-not-found, unused-ignore]  # beside this file

RELATIVE = ("rloo", "group_norm", "dr_grpo", "reinforce_baseline")


class WrongError(Exception):
    """A run that continues and teaches nothing."""


def start_processes(args: Any) -> None:
    """What processes would refuse, with ranges of optimizers, engines and estimators."""
    examples_start(args)
    demand = examples.demand
    demand(args.vllm.gpu_memory_utilization is None or 0 < args.vllm.gpu_memory_utilization <= 1, "vLLM's memory")
    demand(args.rollout.temperature >= 0 and 0 < args.rollout.top_p <= 1, "sampling")
    demand(args.rollout.n_samples_per_prompt > 0 and args.rollout.batch_size > 0, "no samples")
    demand(args.data.max_len is None or args.data.max_len > 0, "no tokens")
    demand(0 <= args.ds.zero_stage <= 3, "DeepSpeed: zero_stage")
    for model in ("actor", "critic") if args.critic.model_name_or_path else ("actor",):
        adam = getattr(args, model).adam
        demand(adam.lr >= 0 and all(0 <= beta < 1 for beta in adam.betas), f"Adam of {model}")
        if adam.lr == 0:
            raise WrongError(f"a learning rate of 0: {model}")
    if args.train.max_epochs < 1 or args.train.num_episodes < 1:
        raise WrongError("no optimizer step")
    if args.rollout.n_samples_per_prompt == 1 and args.algo.advantage.estimator in RELATIVE:
        raise WrongError("a group of one sample")
    if args.rollout.temperature == 0 and args.rollout.n_samples_per_prompt > 1:
        raise WrongError("greedy samples of a prompt are all alike")


examples_start = examples.start_processes


def main(checkout: Path) -> None:
    """Answer questions until there are no more; those of a base that is refused are left out."""
    refused = set[str]()
    for line in sys.stdin:
        question = json.loads(line)
        if question["base"] in refused:
            continue
        started = time.perf_counter()
        with patch.object(examples, "start_processes", start_processes):
            words = examples.verdict(checkout, question["words"])
        answer: dict[str, Any] = {"id": question["id"], "ok": not words or words.startswith("WrongError")}
        if words.startswith("WrongError"):
            answer["wrong"] = words[len("WrongError: ") :]
        elif words:
            answer |= {"error": words[:300], "stage": "reading" if words.startswith("RefusedError") else "library"}
        if question["kind"] == "base" and words:
            refused.add(question["base"])
        answer["s"] = round(time.perf_counter() - started, 3)
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
