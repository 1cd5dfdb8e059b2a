"""What verl itself says of configurations, without GPUs: the oracle of ``verl_examples.py``.

It runs with a Python that has verl, Hydra and OmegaConf, but no engine. JSON lines ``{"id", "overrides", "name"}`` come
in, and a line with a verdict goes out for each: whether verl accepts it, or at which stage, with which words and after
how long it refuses. The stages are Hydra, ``validate_config``, the dataclasses, and the arithmetic that verl's workers
do when they start; the last is repeated here, by the formulas of verl 0.9.1, since workers need GPUs.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

MEGATRON_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


class RefusedError(Exception):
    """What a worker of verl would refuse."""


def demand(holds: bool, words: str) -> None:
    """Refuse what a worker refuses."""
    if not holds:
        raise RefusedError(words)


def model_parallel(actor: Any) -> int | None:
    """The GPUs that a row occupies; None for an engine whose formulas are not repeated here."""
    if actor.strategy == "megatron":
        return int(math.prod(actor.megatron[name] for name in MEGATRON_SIZES))
    if actor.strategy in ("fsdp", "fsdp2", "fsdp_turbo"):
        old = actor.ulysses_sequence_parallel_size
        return int(old if old > 1 else actor.fsdp_config.ulysses_sequence_parallel_size)
    return int(actor.veomni.ulysses_parallel_size) if actor.strategy == "veomni" else None


def start_workers(config: Any, *, critic: bool, reference: bool) -> None:
    """The arithmetic of verl's workers and of its V1 trainer."""
    roles = config.actor_rollout_ref
    actor, rollout = roles.actor, roles.rollout
    gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
    demand(actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz, "use_dynamic_bsz == log_prob_use_dynamic_bsz")
    if not actor.use_dynamic_bsz:
        demand(rollout.log_prob_micro_batch_size_per_gpu is not None, "log_prob_micro_batch_size_per_gpu is None")
        demand(actor.ppo_micro_batch_size_per_gpu is not None, "ppo_micro_batch_size_per_gpu is None")
    engine = math.prod(rollout[f"{name}_parallel_size"] for name in ("tensor_model", "data", "pipeline_model"))
    demand(gpus % engine == 0, f"rollout: {gpus} % {engine}")
    demand(engine % min(config.trainer.n_gpus_per_node, engine) == 0, "an engine over parts of nodes")
    per_row = model_parallel(actor)
    if per_row is None:
        return
    demand(gpus % per_row == 0, f"engine: {gpus} % {per_row}")
    train_step(config, gpus // per_row, critic=critic, reference=reference)


def train_step(config: Any, ranks: int, *, critic: bool, reference: bool) -> None:
    """The rows of a step of the V1 trainer."""
    roles, mode = config.actor_rollout_ref, config.trainer.v1.trainer_mode
    actor, rollout = roles.actor, roles.rollout
    demand(mode in ("sync", "colocate_async", "separate_async"), f"no trainer '{mode}'")
    parts = 1
    if mode == "separate_async":
        parts = config.trainer.v1.separate_async.parameter_sync_step
        demand(config.data.train_batch_size == parts * actor.ppo_mini_batch_size, "separate_async: train_batch_size")
        demand(rollout.nnodes > 0 and rollout.n_gpus_per_node > 0, "separate_async: the rollout has no GPUs")
        demand(rollout.checkpoint_engine.backend != "naive", "separate_async: checkpoint_engine.backend")
    mini = actor.ppo_mini_batch_size * rollout.n
    rows, multiple = config.data.train_batch_size // parts * rollout.n, math.lcm(ranks, mini)
    if critic:
        multiple = math.lcm(multiple, config.critic.ppo_mini_batch_size * rollout.n)
    demand(rows > 0 and multiple > 0, "no rows")
    rows = -(-rows // multiple) * multiple
    demand(mini % ranks == 0, f"mini-batch: {mini} % {ranks}")
    if not actor.use_dynamic_bsz:
        demand(mini // ranks % actor.ppo_micro_batch_size_per_gpu == 0, "micro-batches of the update")
        demand(rows // ranks % rollout.log_prob_micro_batch_size_per_gpu == 0, "micro-batches of the log-probs")
    if reference and not roles.ref.log_prob_use_dynamic_bsz:
        demand(bool(roles.ref.log_prob_micro_batch_size_per_gpu), "the reference has no micro-batch")
        demand(rows // ranks % roles.ref.log_prob_micro_batch_size_per_gpu == 0, "micro-batches of the reference")


class Oracle:
    """verl without its engines."""

    def __init__(self) -> None:
        self.hydra = importlib.import_module("hydra")
        self.instance = importlib.import_module("hydra.core.global_hydra").GlobalHydra.instance
        self.folder = str(Path(importlib.import_module("verl").__file__ or "").parent / "trainer" / "config")
        self.configs = importlib.import_module("verl.utils.config")
        self.needs = importlib.import_module("verl.trainer.ppo.utils")
        self.algorithms = importlib.import_module("verl.trainer.ppo.core_algos")
        model = importlib.import_module("verl.workers.config.model")
        model.HFModelConfig.__post_init__ = lambda self: None  # it loads the model's files
        self.stage = ""

    def verdict(self, question: dict[str, Any]) -> dict[str, Any]:
        """The verdict on one configuration."""
        started = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._ask(question)
        except Exception as error:  # noqa: BLE001  # whatever verl raises is its verdict
            words = f"{type(error).__name__}: {error}"[:300]
            seconds = time.perf_counter() - started
            return {"id": question["id"], "ok": False, "stage": self.stage, "error": words, "s": seconds}
        return {"id": question["id"], "ok": True, "s": time.perf_counter() - started}

    def _ask(self, question: dict[str, Any]) -> None:
        self.stage = "hydra"
        self.instance().clear()
        with self.hydra.initialize_config_dir(self.folder, version_base=None):
            config = self.hydra.compose(question.get("name", "ppo_trainer"), overrides=question["overrides"])
        critic, reference = self.needs.need_critic(config), self.needs.need_reference_policy(config)
        self.stage = "validate_config"
        model = config.actor_rollout_ref.model
        model.lora_rank = model.lora.rank = 0  # with adapters it asks vLLM, which is not installed here
        self.configs.validate_config(config, reference, critic)
        self.stage = "dataclass"
        self.configs.omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        self.configs.omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.stage = "worker"
        start_workers(config, critic=critic, reference=reference)
        self.algorithms.get_adv_estimator_fn(config.algorithm.adv_estimator)


def main() -> None:
    """Answer questions until there are no more."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    oracle = Oracle()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(oracle.verdict(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
