"""The units of OpenRLHF's sizes.

``rollout.batch_size`` counts prompts; ``train.batch_size``, ``rollout.micro_batch_size`` and ``train.micro_batch_size``
count samples, which are prompts with one response each.

A worked example: 8 GPUs for the actor, ``rollout.batch_size`` 64, ``rollout.n_samples_per_prompt`` 8,
``rollout.micro_batch_size`` 16, ``train.batch_size`` 128 and ``train.micro_batch_size`` 8:

- a step has 64 x 8 = 512 samples, which the driver cuts into 512 / 16 = 32 sample batches;
- each of 8 ranks takes ceil(32 / 8) = 4 consecutive sample batches: 64 samples;
- a rank trains 64 / 8 = 8 micro-batches a step. An optimizer step takes 128 / (8 x 8) = 2 of them, so a step has 4.
"""

from __future__ import annotations

from hfdsl.interop.settings import Configuration, is_integer

PROMPTS, GENERATED, SAMPLES = "rollout.batch_size", "rollout.vllm_generate_batch_size", "rollout.n_samples_per_prompt"
SAMPLE_BATCH, TRAIN, MICRO = "rollout.micro_batch_size", "train.batch_size", "train.micro_batch_size"
RING, TENSOR, DYNAMIC = "ds.ring_attn_size", "ds.tensor_parallel_size", "train.dynamic_batch_enable"
ENGINES, ENGINE_SIZE = "vllm.num_engines", "vllm.tensor_parallel_size"
COLOCATE_ALL, COLOCATE_REF, COLOCATE_REWARD = (
    "train.colocate_all",
    "train.colocate_actor_ref",
    "train.colocate_critic_reward",
)
ASYNC, ESTIMATOR, KL = "train.async_enable", "algo.advantage.estimator", "algo.kl.init_coef"


NAMES = {"actor": "actor", "ref": "reference", "critic": "critic", "reward": "reward model"}
"""The names of the models on pages and in findings."""


def gpu_keys(role: str) -> tuple[str, str]:
    """The keys of a model's nodes and of its GPUs on each."""
    return f"{role}.num_nodes", f"{role}.num_gpus_per_node"


def gpus(c: Configuration, role: str) -> int:
    """The GPUs of a model."""
    nodes, per_node = gpu_keys(role)
    return c.size(nodes) * c.size(per_node)


def copy_size(c: Configuration) -> int:
    """The GPUs that share one row: ring attention and tensor parallelism of DeepSpeed."""
    return c.size(RING) * c.size(TENSOR)


def is_whole(c: Configuration, role: str) -> bool:
    """Whether a model's GPUs are whole data-parallel ranks; another rule reports where they are not."""
    return gpus(c, role) % copy_size(c) == 0


def ranks(c: Configuration, role: str) -> int:
    """The data-parallel ranks of a model."""
    return gpus(c, role) // copy_size(c)


def is_set(c: Configuration, key: str) -> bool:
    """Whether an option whose default is None has a value, which may be one that only a run knows."""
    return key in c.explicit or c.value(key) is not None


def uses_critic(c: Configuration) -> bool:
    """Whether a critic is trained: GAE always has one."""
    return bool(c.value(ESTIMATOR) == "gae")


def uses_reference(c: Configuration) -> bool:
    """Whether there is a reference model."""
    coefficient = c.value(KL)
    return isinstance(coefficient, int | float) and bool(coefficient > 0)


def rewards_are_remote(c: Configuration) -> bool:
    """Whether a server, a function or an agent gives rewards, so that no reward model has GPUs."""
    return is_set(c, "reward.remote_url") or is_set(c, "train.agent_func_path")


def models(c: Configuration) -> list[str]:
    """The models of a run that are on GPUs."""
    present = {"ref": uses_reference(c), "critic": uses_critic(c), "reward": not rewards_are_remote(c)}
    return ["actor", *(role for role, is_used in present.items() if is_used)]


def prompts(c: Configuration) -> int:
    """The prompts of a step: no more than one call of the engines generates."""
    generated = c.value(GENERATED)
    return min(c.size(PROMPTS), c.size(GENERATED)) if is_integer(generated) and generated else c.size(PROMPTS)


def samples(c: Configuration) -> int:
    """The samples of a step."""
    return prompts(c) * c.size(SAMPLES)


def samples_of_ranks(c: Configuration, role: str) -> list[int]:
    """How many samples each rank of a model gets in a step, without dynamic batches."""
    total, batch, count = samples(c), c.size(SAMPLE_BATCH), ranks(c, role)
    batches = -(-total // batch)
    rank_batches = -(-batches // count)
    return [
        max(0, min((rank + 1) * rank_batches * batch, total) - rank * rank_batches * batch) for rank in range(count)
    ]


def engine_gpus(c: Configuration) -> int:
    """The GPUs of all engines."""
    return c.size(ENGINES) * c.size(ENGINE_SIZE)


def engines_share_gpus(c: Configuration) -> bool:
    """Whether the engines are on the GPUs of the models."""
    return c.value(COLOCATE_ALL) is True and c.value(ASYNC) is not True


def total_gpus(c: Configuration) -> int:
    """The GPUs of the whole run."""
    separate = models(c)
    if c.value(COLOCATE_ALL) is True:
        separate = ["actor"]
        if uses_critic(c) and c.value(COLOCATE_REWARD) is True:
            separate.append("critic")
    else:
        if c.value(COLOCATE_REF) is True and "ref" in separate:
            separate.remove("ref")
        if c.value(COLOCATE_REWARD) is True and "critic" in separate and "reward" in separate:
            separate.remove("reward")
    return sum(gpus(c, role) for role in separate) + (0 if engines_share_gpus(c) else engine_gpus(c))
