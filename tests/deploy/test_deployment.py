"""Deployments: what a place holds, and which processes places make."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.deploy.deployment import process_groups, processes_per_slot
from hfdsl.errors import ResourceError


class Actor(hf.Worker):
    def __init__(self, size: int, *, name: str = "a") -> None: ...


class Critic(hf.Worker): ...


POOL = hf.ResourcePool([2, 2], name="train")


def test_a_place_holds_class_arguments_pool_mesh_and_line() -> None:
    place = hf.place(Actor, 3, name="b", pool=POOL, mesh=hf.Mesh(dp=2, tp=2))
    assert (place.role, place.args, dict(place.kwargs)) == (Actor, (3,), {"name": "b"})
    assert (place.pool, place.mesh, place.colocate) == (POOL, hf.Mesh(dp=2, tp=2), True)
    assert place.span.file == __file__
    assert hf.place(Critic, pool=POOL).mesh == hf.Mesh(dp=4)


def test_a_deployment_has_places_by_name() -> None:
    deployment = hf.Deployment(actor=hf.place(Actor, 3, pool=POOL), critic=hf.place(Critic, pool=POOL))
    assert list(deployment) == ["actor", "critic"]
    assert deployment["critic"].role is Critic
    assert deployment.pools == (POOL,)
    assert deployment.span.file == __file__
    where = "on train [2, 2] Mesh(pp=1 dp=4 tp=1)"
    assert repr(deployment) == f"Deployment(actor=Actor {where}, critic=Critic {where})"


def test_roles_of_one_pool_share_processes_unless_they_want_their_own() -> None:
    second_pool = hf.ResourcePool([1], name="other")
    deployment = hf.Deployment(
        actor=hf.place(Actor, 3, pool=POOL),
        critic=hf.place(Critic, pool=second_pool),
        reference=hf.place(Critic, pool=POOL),
        reward=hf.place(Critic, pool=POOL, colocate=False),
    )
    groups = process_groups(deployment)
    assert [(group.name, group.pool.name, group.roles) for group in groups] == [
        ("actor+reference", "train", ("actor", "reference")),
        ("critic", "other", ("critic",)),
        ("reward", "train", ("reward",)),
    ]


def test_places_that_cannot_be() -> None:
    wrong: Any = [4]
    mistakes: list[tuple[Callable[[], object], str]] = [
        (
            lambda: hf.place(Critic),  # type: ignore[call-arg]  # on purpose: type checkers see it too
            "place(Critic) needs pool=, the hf.ResourcePool whose slots Critic runs on",
        ),
        (lambda: hf.place(Critic, pool=wrong), "place(Critic): pool= takes an hf.ResourcePool, got [4]"),
        (lambda: hf.place(wrong, pool=POOL), "place takes a role class derived from hf.Worker, got [4]"),
        (
            lambda: hf.place(int, pool=POOL),  # type: ignore[type-var]  # on purpose
            "place takes a role class derived from hf.Worker, got class int: write class int(hf.Worker)",
        ),
        (lambda: hf.Deployment(actor=wrong), "role 'actor' takes hf.place(...), got [4]"),
    ]
    for make, text in mistakes:
        with pytest.raises(ResourceError) as error:
            make()
        assert str(error.value) == f"HF507: {text}"


def test_a_mesh_that_is_none() -> None:
    wrong: Any = {"dp": 2, "tp": 2}
    text = r"HF501: place\(Critic\): mesh= takes an hf\.Mesh, such as hf\.Mesh\(dp=2, tp=2\), got \{'dp': 2"
    with pytest.raises(ResourceError, match=text):
        hf.place(Critic, pool=POOL, mesh=wrong)


def test_memory_that_a_role_keeps() -> None:
    amounts = [hf.place(Critic, pool=POOL, gpu_memory=text).gpu_memory for text in ("40GiB", " 512 MiB", "62.5%")]
    assert [(str(memory), memory.gib, memory.fraction) for memory in amounts if memory] == [
        ("40GiB", 40, 0),
        ("512MiB", Fraction(1, 2), 0),
        ("62.5%", 0, Fraction(5, 8)),
    ]
    assert hf.place(Critic, pool=POOL).gpu_memory is None


def test_memory_that_is_none() -> None:
    numbers: list[Any] = [40, 0.6, "40", "40GB", "-1GiB", True]
    for wrong in numbers:
        with pytest.raises(ResourceError) as error:
            hf.place(Critic, pool=POOL, gpu_memory=wrong)
        assert str(error.value) == (
            f'HF504: place(Critic): gpu_memory= is text with a unit, such as "40GiB" or "60%" of the device, '
            f"got {wrong!r}"
        )
    with pytest.raises(
        ResourceError, match="HF504: place\\(Critic\\): gpu_memory='110%' is not a part of a GPU's memory"
    ):
        hf.place(Critic, pool=POOL, gpu_memory="110%")


def test_slots_have_room_for_every_group() -> None:
    def groups(count: int) -> int:
        roles = {f"role{i}": hf.place(Critic, pool=POOL, colocate=False) for i in range(count)}
        return processes_per_slot(process_groups(hf.Deployment(**roles)))

    assert [groups(count) for count in (1, 10, 11, 25)] == [10, 10, 11, 25]
