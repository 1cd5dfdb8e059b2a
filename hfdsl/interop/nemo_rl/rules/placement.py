"""Training and generation on GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.nemo_rl.units import (
    BACKEND,
    COLOCATED,
    DTENSOR,
    GPUS,
    MEGATRON,
    NODES,
    OWN_GPUS,
    OWN_NODES,
    VLLM,
    count,
    engine_size,
    generation_gpus,
    get,
    is_size,
    on,
    policy_nodes,
    reward_gpus,
    split,
    uses_async_engine,
)
from hfdsl.interop.reporting import Problem, finding, value_text
from hfdsl.interop.settings import Configuration, is_integer


def generation_has_gpus(c: Configuration) -> Iterator[Problem]:
    """Training and generation both have GPUs."""
    # setup in algorithms/grpo.py
    nodes, per_node, total = policy_nodes(c), c.size(GPUS), c.size(NODES)
    if nodes < 1:
        key = "env.reward_model.resources.num_nodes"
        yield finding(c, "HF974", f"{NODES} = {total}, and the reward model takes all of them", key, NODES)
        return
    reward_model_gpus = reward_gpus(c)[1] if total == 1 else 0
    if c.value(COLOCATED):
        if reward_model_gpus >= per_node:
            key = "env.reward_model.resources.gpus_per_node"
            yield finding(
                c, "HF974", f"{GPUS} = {per_node}, and the reward model takes {reward_model_gpus} of them", key, GPUS
            )
        return
    yield from _own_gpus(c, reward_model_gpus) if nodes == 1 else _own_nodes(c, nodes)


def _own_gpus(c: Configuration, reward_model_gpus: int) -> Iterator[Problem]:
    """On one node, generation has some of the GPUs."""
    own_nodes, own_gpus, per_node = get(c, OWN_NODES), get(c, OWN_GPUS), c.size(GPUS)
    if not is_size(own_gpus):
        yield _unset_size(c, "one node", "GPUs", OWN_GPUS)
        return
    if own_nodes not in (None, 1):
        yield finding(c, "HF974", f"{OWN_NODES} = {own_nodes}, and there is one node", OWN_NODES, NODES)
    if own_gpus + reward_model_gpus >= per_node:
        yield _nothing_for_training(c, "GPUs", OWN_GPUS, GPUS)


def _own_nodes(c: Configuration, nodes: int) -> Iterator[Problem]:
    """On several nodes, generation has some of them, with all their GPUs."""
    own_nodes, own_gpus, per_node = get(c, OWN_NODES), get(c, OWN_GPUS), c.size(GPUS)
    if not is_size(own_nodes):
        yield _unset_size(c, f"{nodes} nodes", "nodes", OWN_NODES, NODES)
    elif own_nodes >= nodes:
        yield _nothing_for_training(c, "nodes", OWN_NODES, NODES)
    if own_gpus != per_node:
        yield finding(
            c,
            "HF974",
            f"generation has whole nodes here, so that {OWN_GPUS} = {value_text(own_gpus)} must be {GPUS} = {per_node}",
            OWN_GPUS,
            GPUS,
            advice=(f"set {OWN_GPUS} to {per_node}",),
        )


def _unset_size(c: Configuration, cluster: str, unit: str, own: str, *keys: str) -> Problem:
    """Generation apart from training, without the number of its GPUs or nodes."""
    needed = f"{COLOCATED} = False on {cluster} needs {own}, the {unit} of generation"
    return finding(c, "HF974", f"{needed}, and it is {value_text(get(c, own))}", COLOCATED, own, *keys)


def _nothing_for_training(c: Configuration, unit: str, own: str, total: str) -> Problem:
    """Generation with all GPUs or nodes of the cluster."""
    taken = f"{own} = {get(c, own)} leaves no {unit} for training"
    return finding(c, "HF974", f"{taken}: {total} = {c.size(total)}", own, total, repairs=(own, total))


def ranks_divide_gpus(c: Configuration) -> Iterator[Problem]:
    """The training GPUs are whole data-parallel ranks."""
    # Policy.__init__ in models/policy/lm_policy.py
    ranks = split(c)
    if not ranks.is_whole:
        product = " x ".join(f"{key.rpartition('.')[2]} {count(c, key)}" for key in ranks.keys)
        yield finding(
            c,
            "HF977",
            f"{ranks.row} GPUs share a row ({product}), which does not divide the {ranks.gpus} GPUs of training",
            *ranks.keys,
            GPUS,
            NODES,
            repairs=(*ranks.keys, NODES),
        )


def engines_divide_gpus(c: Configuration) -> Iterator[Problem]:
    """The GPUs of generation are whole engines."""
    # VllmGeneration.__init__
    if c.value(BACKEND) != "vllm":
        return
    tensor, pipeline, expert = (f"{VLLM}.{name}_parallel_size" for name in ("tensor", "pipeline", "expert"))
    size, gpus = engine_size(c), generation_gpus(c)
    where = (GPUS, NODES) if c.value(COLOCATED) else (OWN_GPUS, OWN_NODES)
    if gpus % size:
        yield finding(
            c,
            "HF977",
            f"an engine takes {tensor} x {pipeline} = {count(c, tensor)} x {count(c, pipeline)} = {size} GPUs, and the "
            f"{gpus} GPUs of generation are not a whole number of engines",
            tensor,
            pipeline,
            *where,
            repairs=(tensor, pipeline),
        )
    if count(c, pipeline) > 1 and not uses_async_engine(c):
        yield finding(
            c,
            "HF974",
            f"{pipeline} = {count(c, pipeline)} needs {VLLM}.async_engine",
            pipeline,
            f"{VLLM}.async_engine",
            advice=(f"set {VLLM}.async_engine to true",),
        )
    experts = get(c, expert, 1)
    if not is_integer(experts) or experts < 2:  # 0 is no expert parallelism, too
        return
    if experts % count(c, tensor):
        yield finding(
            c,
            "HF977",
            f"{expert} = {experts} is not a multiple of {tensor} = {count(c, tensor)}",
            expert,
            tensor,
            repairs=(expert, tensor),
        )
    elif experts != count(c, tensor) and uses_async_engine(c):
        yield finding(
            c,
            "HF974",
            f"{expert} = {experts} is not {tensor} = {count(c, tensor)}, which {VLLM}.async_engine does not support",
            expert,
            tensor,
            f"{VLLM}.async_engine",
        )


def experts_divide_ranks(c: Configuration) -> Iterator[Problem]:
    """Replicas of the data-parallel ranks are whole."""
    # setup_distributed in models/automodel/setup.py
    key = f"{DTENSOR}.dp_replicate_size"
    if on(c, f"{MEGATRON}.enabled") or not c.has(key) or count(c, key) == 1:
        return
    ranks = split(c)
    if not on(c, f"{DTENSOR}._v2"):
        yield finding(c, "HF974", f"{key} = {count(c, key)} needs {DTENSOR}._v2", key, f"{DTENSOR}._v2")
        return
    row = ranks.row * count(c, f"{DTENSOR}.expert_parallel_size")
    if ranks.is_whole and ranks.gpus // row % count(c, key):
        yield finding(
            c,
            "HF977",
            f"{key} = {count(c, key)} does not divide {ranks.gpus // row} data-parallel ranks",
            key,
            *ranks.keys,
            repairs=(key,),
        )
