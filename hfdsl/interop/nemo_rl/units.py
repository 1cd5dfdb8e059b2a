"""The units of NeMo-RL's sizes.

``grpo.num_prompts_per_step`` counts prompts; ``policy.train_global_batch_size``, ``train_micro_batch_size`` and
``logprob_batch_size`` count rows, which are prompts with one response each. GPUs of ``cluster`` are those of the whole
run: generation on GPUs of its own, a reward model and teachers take theirs from them.

A worked example: 1 node of 8 GPUs, tensor parallelism 2, 32 prompts x 16 responses, ``train_global_batch_size`` 512 and
``train_micro_batch_size`` 4, without packing:

- a step has 32 x 16 = 512 rows, which are one global batch: one optimizer step;
- 8 GPUs are 8 / 2 = 4 data-parallel ranks, and each takes 512 / 4 = 128 rows of the global batch;
- a rank trains 128 / 4 = 32 micro-batches of 4 rows for the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hfdsl.interop.settings import Configuration, NotKnown, is_integer

PROMPTS, SAMPLES = "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt"
GLOBAL, MICRO, LOGPROB = "policy.train_global_batch_size", "policy.train_micro_batch_size", "policy.logprob_batch_size"
LONGEST, NEW_TOKENS = "policy.max_total_sequence_length", "policy.generation.max_new_tokens"
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
DYNAMIC, PACKING = "policy.dynamic_batching", "policy.sequence_packing"
NODES, GPUS = "cluster.num_nodes", "cluster.gpus_per_node"
GENERATION = "policy.generation"
BACKEND, COLOCATED = f"{GENERATION}.backend", f"{GENERATION}.colocated.enabled"
OWN_NODES, OWN_GPUS = f"{GENERATION}.colocated.resources.num_nodes", f"{GENERATION}.colocated.resources.gpus_per_node"
VLLM = f"{GENERATION}.vllm_cfg"
ASYNC, FILTER = "grpo.async_grpo.enabled", "grpo.use_dynamic_sampling"
IGNORE_ACCURACY = "NRL_IGNORE_TP_ACCURACY_CHECK"
"""A variable of the environment; a reader that knows it has it among the keys."""
REWARD_RESOURCES = "env.reward_model.resources"


def get(c: Configuration, key: str, otherwise: Any = None) -> Any:
    """The value of a key, or a default if there is no such key.

    Raises:
        NotKnown: where the key may be in a file that is not known.
    """
    return c.value(key) if c.has(key) or c.unknown_below else otherwise


def on(c: Configuration, key: str) -> bool:
    """Whether a switch is on; one that is not there is off."""
    return bool(get(c, key, False))


def count(c: Configuration, key: str) -> int:
    """A size; 1 if there is no such key."""
    return c.size(key) if c.has(key) or c.unknown_below else 1


@dataclass(frozen=True, slots=True)
class RankSplit:
    """The training GPUs of the policy, and how many of them share a row."""

    gpus: int
    row: int
    keys: tuple[str, ...]
    """The parallel sizes that are not 1; the first one where all are."""

    @property
    def is_whole(self) -> bool:
        """Whether the GPUs are whole ranks; another rule reports where they are not."""
        return self.gpus % self.row == 0

    @property
    def ranks(self) -> int:
        """The data-parallel ranks."""
        return self.gpus // self.row


def parallel_keys(c: Configuration) -> tuple[str, ...]:
    """The keys of the parallel sizes of training that multiply to the GPUs of a row."""
    if on(c, f"{MEGATRON}.enabled"):
        return tuple(
            f"{MEGATRON}.{name}"
            for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        )
    return tuple(f"{DTENSOR}.{name}" for name in ("tensor_parallel_size", "context_parallel_size"))


def split(c: Configuration) -> RankSplit:
    """How training GPUs divide into ranks."""
    keys, row = parallel_keys(c), 1
    for key in keys:
        row *= count(c, key)
    return RankSplit(train_gpus(c), row, tuple(key for key in keys if count(c, key) > 1) or keys[:1])


def whole_split(c: Configuration) -> RankSplit:
    """The split, where the GPUs are whole ranks.

    Raises:
        NotKnown: where they are not.
    """
    result = split(c)
    if not result.is_whole or result.gpus < result.row:
        raise NotKnown(
            result.keys[0], f"{result.row} GPUs of a row do not divide {result.gpus}", c.span(result.keys[0])
        )
    return result


def reward_gpus(c: Configuration) -> tuple[int, int]:
    """The nodes of a reward model and its GPUs on each; (0, 0) if there is none."""
    names = [get(c, f"data.{part}.env_name") for part in ("train", "validation")]
    if get(c, "data.default.env_name") == "reward_model":
        return c.size(f"{REWARD_RESOURCES}.num_nodes"), c.size(f"{REWARD_RESOURCES}.gpus_per_node")
    if "reward_model" in names:
        raise NotKnown("data.train.env_name", "a reward model that data.default does not name", c.place)
    return 0, 0


def policy_nodes(c: Configuration) -> int:
    """The nodes of training and generation."""
    if get(c, "on_policy_distillation.enabled"):
        raise NotKnown("on_policy_distillation", "teachers take nodes", c.place)
    total = c.size(NODES)
    return total if total == 1 else total - reward_gpus(c)[0]


def own_gpus(c: Configuration) -> tuple[int, int]:
    """The nodes of generation on GPUs of its own, and its GPUs on each.

    Raises:
        NotKnown: where they do not fit the cluster; another rule reports that.
    """
    if policy_nodes(c) == 1:
        return 1, c.size(OWN_GPUS)
    return c.size(OWN_NODES), c.size(OWN_GPUS)


def train_gpus(c: Configuration) -> int:
    """The GPUs of training."""
    nodes, per_node = policy_nodes(c), c.size(GPUS)
    reward_model_gpus = reward_gpus(c)[1] if c.size(NODES) == 1 else 0
    if c.value(COLOCATED):
        result = nodes * (per_node - reward_model_gpus)
    elif nodes == 1:
        result = per_node - own_gpus(c)[1] - reward_model_gpus
    else:
        result = (nodes - own_gpus(c)[0]) * per_node
    if result < 1:
        raise NotKnown(GPUS, "no GPUs are left for training", c.span(GPUS))
    return result


def generation_gpus(c: Configuration) -> int:
    """The GPUs of generation."""
    if c.value(COLOCATED):
        return train_gpus(c)
    nodes, per_node = own_gpus(c)
    return nodes * per_node


def rows(c: Configuration) -> int:
    """The rows that a step is trained on."""
    return c.size(PROMPTS) * c.size(SAMPLES)


def has_fixed_batches(c: Configuration) -> bool:
    """Whether micro-batches have a fixed number of rows."""
    return not on(c, f"{DYNAMIC}.enabled") and not on(c, f"{PACKING}.enabled")


def engine_size(c: Configuration) -> int:
    """The GPUs of an engine of vLLM."""
    return count(c, f"{VLLM}.tensor_parallel_size") * count(c, f"{VLLM}.pipeline_parallel_size")


def uses_async_engine(c: Configuration) -> bool:
    """Whether the engine serves requests while others run."""
    backend = c.value(BACKEND)
    if backend == "vllm":
        return on(c, f"{VLLM}.async_engine")
    if backend == "megatron":
        return on(c, f"{GENERATION}.mcore_generation_config.async_engine")
    return on(c, f"{GENERATION}.use_async_rollouts")


def estimator(c: Configuration) -> str:
    """The name of the advantage estimator."""
    return str(get(c, "grpo.adv_estimator.name", "grpo"))


def is_size(value: object) -> bool:
    """Whether a value is a positive integer."""
    return is_integer(value) and isinstance(value, int) and value > 0
