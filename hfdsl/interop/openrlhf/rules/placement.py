"""Models and engines on GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.openrlhf.units import (
    ASYNC,
    COLOCATE_ALL,
    COLOCATE_REF,
    COLOCATE_REWARD,
    ENGINE_SIZE,
    ENGINES,
    NAMES,
    RING,
    TENSOR,
    copy_size,
    engine_gpus,
    engines_share_gpus,
    gpu_keys,
    gpus,
    models,
    rewards_are_remote,
    uses_critic,
    uses_reference,
)
from hfdsl.interop.reporting import Problem, finding
from hfdsl.interop.settings import Configuration


def ranks_divide_gpus(c: Configuration) -> Iterator[Problem]:
    """The GPUs of a model are whole data-parallel ranks."""
    # DeepspeedStrategy.setup_distributed makes a mesh of data-parallel ranks x ring attention x tensor parallelism.
    reported = set[int]()
    for role in models(c):
        count = gpus(c, role)
        if count % copy_size(c) and count not in reported:
            reported.add(count)
            yield finding(
                c,
                "HF977",
                f"{RING} x {TENSOR} = {c.size(RING)} x {c.size(TENSOR)} = {copy_size(c)} GPUs share a row, which does "
                f"not divide the {count} GPUs of the {NAMES[role]}",
                RING,
                TENSOR,
                *gpu_keys(role),
                repairs=(RING, TENSOR, gpu_keys(role)[1]),
            )


def references_share_gpus(c: Configuration) -> Iterator[Problem]:
    """A reference on the actor's GPUs has as many."""
    # train in cli/train_ppo_ray.py
    shared = next((key for key in (COLOCATE_ALL, COLOCATE_REF) if c.value(key) is True), None)
    if shared is None or not uses_reference(c):
        return
    yield from _other_shape(c, "ref", "actor", shared)


def critics_share_gpus(c: Configuration) -> Iterator[Problem]:
    """A reward model on the critic's GPUs has as many; models on the actor's GPUs have no more than it."""
    # train in cli/train_ppo_ray.py, and RayActorGroup in trainer/ray/launcher.py, which takes a bundle for each rank
    critic, shares_critic = uses_critic(c), False
    if critic and c.value(COLOCATE_REWARD) is True:
        shares_critic = True
        yield from _other_shape(c, "reward", "critic", COLOCATE_REWARD)
    if c.value(COLOCATE_ALL) is not True or shares_critic:
        return
    for role in (*(("critic",) if critic else ()), *(() if rewards_are_remote(c) else ("reward",))):
        if gpus(c, role) > gpus(c, "actor"):
            yield finding(
                c,
                "HF985",
                f"{COLOCATE_ALL} puts the {NAMES[role]} on the {gpus(c, 'actor')} GPUs of the actor, and it has "
                f"{gpus(c, role)}",
                *gpu_keys(role),
                *gpu_keys("actor"),
                COLOCATE_ALL,
                repairs=gpu_keys(role),
            )


def engines_share_gpus_evenly(c: Configuration) -> Iterator[Problem]:
    """Engines on the GPUs of the models take all of them."""
    # train in cli/train_ppo_ray.py
    if engines_share_gpus(c) and engine_gpus(c) != gpus(c, "actor"):
        yield finding(
            c,
            "HF985",
            f"{COLOCATE_ALL} puts the engines on the GPUs of the actor: {ENGINES} x {ENGINE_SIZE} = "
            f"{c.size(ENGINES)} x {c.size(ENGINE_SIZE)} = {engine_gpus(c)} GPUs are not its {gpus(c, 'actor')}",
            ENGINES,
            ENGINE_SIZE,
            *gpu_keys("actor"),
            COLOCATE_ALL,
            *((ASYNC,) if ASYNC in c.explicit else ()),
            repairs=(ENGINES, ENGINE_SIZE, gpu_keys("actor")[1]),
        )


def _other_shape(c: Configuration, role: str, host: str, shared: str) -> Iterator[Problem]:
    """HF985 unless a role has the nodes and GPUs of the ``host`` on whose GPUs ``shared`` puts it."""
    pairs = zip(gpu_keys(host), gpu_keys(role), strict=True)
    keys = [key for pair in pairs for key in pair if c.size(pair[0]) != c.size(pair[1])]
    if keys:
        name, of_host = NAMES[role], NAMES[host]
        yield finding(
            c,
            "HF985",
            f"{shared} puts the {name} on the GPUs of the {of_host}, which has {_shape(c, host)}, and the {name} "
            f"{_shape(c, role)}",
            *keys,
            shared,
            repairs=keys,
        )


def _shape(c: Configuration, role: str) -> str:
    nodes, per_node = gpu_keys(role)
    return f"{c.size(nodes)} x {c.size(per_node)}"
