"""Parallel sizes over GPUs and nodes."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.reporting import Problem, finding, setting_fix
from hfdsl.interop.settings import Configuration, is_integer
from hfdsl.interop.verl.units import (
    ACTOR,
    FSDP,
    GPUS,
    MINI,
    MODE,
    NODES,
    ROLLOUT,
    gpus,
    training_roles,
    uses_critic,
)


def model_parallelism_divides_gpus(c: Configuration) -> Iterator[Problem]:
    """The parallel sizes of a model divide its GPUs."""
    for mini, split in training_roles(c):
        if split.gpus % split.per_row:
            role = "the actor" if mini == MINI else "the critic"
            yield finding(
                c,
                "HF977",
                f"{role}'s {split.names} sizes multiply to {split.per_row}, which does not divide {split.gpus} GPUs "
                f"({c.size(NODES)} nodes x {c.size(GPUS)})",
                *split.keys,
                GPUS,
                NODES,
                repairs=(*split.keys, NODES),
            )


def shards_divide_gpus(c: Configuration) -> Iterator[Problem]:
    """The GPUs among which FSDP shards a model divide all of its GPUs."""
    roles = [(ACTOR, f"{ACTOR}.fsdp_config")]
    if uses_critic(c):
        roles.append(("critic", "critic.fsdp"))
    for role, engine in roles:
        key = f"{engine}.fsdp_size"
        if c.value(f"{role}.strategy") not in FSDP or not is_integer(size := c.value(key)):
            continue
        if size == 0 or (0 < size < gpus(c) and gpus(c) % size):
            message = f"{key} = {size} does not divide {gpus(c)} GPUs ({c.size(NODES)} nodes x {c.size(GPUS)})"
            yield finding(c, "HF977", message, key, GPUS, NODES, repairs=(key,))


def engines_divide_gpus(c: Configuration) -> Iterator[Problem]:
    """The GPUs hold whole copies of the rollout engine."""
    keys = tuple(f"{ROLLOUT}.{name}" for name in ("tensor_model_parallel_size", "data_parallel_size"))
    size = c.size(keys[0]) * c.size(keys[1])
    separate = c.value(MODE) == "separate_async"
    pools = (
        [(gpus(c), c.size(GPUS), (GPUS, NODES), "the trainer's")]
        if not separate or c.known("actor_rollout_ref.hybrid_engine", True)
        else []
    )
    if separate:
        pool_keys = (f"{ROLLOUT}.n_gpus_per_node", f"{ROLLOUT}.nnodes")
        if all(is_integer(c.value(key)) and c.value(key) > 0 for key in pool_keys):
            pools.append(
                (c.size(pool_keys[0]) * c.size(pool_keys[1]), c.size(pool_keys[0]), pool_keys, "the rollout's")
            )
    for count, per_node, pool_keys, whose in pools:
        product = " x ".join(f"{key.rpartition('.')[2]} {c.size(key)}" for key in keys if c.size(key) > 1) or "1"
        if count % size:
            yield finding(
                c,
                "HF977",
                f"an engine takes {size} GPUs ({product}), and {whose} {count} GPUs are not a whole number of engines",
                *keys,
                *pool_keys,
                repairs=(keys[0], pool_keys[1]),
            )
        elif size > per_node and size % per_node:
            yield finding(
                c,
                "HF977",
                f"an engine takes {size} GPUs ({product}), more than a node's {per_node} and no whole number of nodes",
                *keys,
                *pool_keys,
                repairs=(keys[0], pool_keys[0]),
            )


def expert_parallelism_is_whole(c: Configuration) -> Iterator[Problem]:
    """Expert parallelism of the rollout engine spans its tensor- and data-parallel ranks."""
    key = f"{ROLLOUT}.expert_parallel_size"
    tp, dp = f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.data_parallel_size"
    value = c.value(key)
    if c.value(f"{ROLLOUT}.name") in ("vllm", "sglang") and is_integer(value) and 1 < value != c.size(tp) * c.size(dp):
        sentence, fixes = setting_fix(c, key, c.size(tp) * c.size(dp))
        yield finding(
            c,
            "HF977",
            f"{key} = {value} is not {tp} x {dp} = {c.size(tp) * c.size(dp)}",
            key,
            tp,
            dp,
            advice=(sentence,),
            fixes=fixes,
        )
