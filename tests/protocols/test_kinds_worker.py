"""Per-rank lists, and workers that know their rank."""

import pickle
from typing import Any

import pytest

from hfdsl.errors import DefinitionError, ResourceError
from hfdsl.protocols import Coordinates, Mesh, PerRank, PerStage, RankContext, Worker, current_rank
from hfdsl.protocols.worker import RESERVED_ENV, instead_of_worker


def test_per_rank_reads_like_a_list() -> None:
    values = PerRank([1, 2, 3])
    assert values == [1, 2, 3]
    assert values == PerRank([1, 2, 3])
    assert values != [1, 2]
    assert (values == (1, 2, 3)) is False
    assert (values == 3) is False
    assert values != PerStage([1, 2, 3])
    assert (values[0], values[-1], values[1:], len(values), 2 in values) == (1, 3, [2, 3], 3, True)
    assert repr(values) == "PerRank([1, 2, 3])"
    assert pickle.loads(pickle.dumps(values)) == values
    assert hash(values) == hash(PerRank([1, 2, 3]))
    with pytest.raises(TypeError):
        values[0] = 5  # type: ignore[index]


class Role(Worker):
    def __init__(self, x: int) -> None:
        self.seen = (self.rank, x)


def test_a_worker_alone_is_rank_zero_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RESERVED_ENV:
        monkeypatch.delenv(name, raising=False)
    role = Role(3)
    assert (role.rank, role.world_size, role.local_rank, role.local_world_size) == (0, 1, 0, 1)
    assert role.mesh == Mesh()
    assert role.coordinates == Coordinates(0, 0, 0)


def test_a_worker_reads_its_rank_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    context = RankContext(
        rank=5, world_size=8, local_rank=1, local_world_size=4, mesh=None, master_addr="10.0.0.1", master_port=1234
    )
    for name, value in context.env().items():
        monkeypatch.setenv(name, value)
    role = Role(0)
    assert (role.rank, role.world_size, role.local_rank, role.local_world_size) == (5, 8, 1, 4)
    assert role.get_master_addr_port() == ("10.0.0.1", "1234")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ResourceError, match=r"HF513"):
        Role(0)


def test_a_worker_is_bound_before_its_own_init_runs() -> None:
    token = current_rank.set(RankContext(rank=3, world_size=4, mesh=Mesh(dp=2, tp=2)))
    try:
        role = Role(7)
    finally:
        current_rank.reset(token)
    assert role.seen == (3, 7)
    assert role.coordinates == Coordinates(pp=0, dp=1, tp=1)


def test_a_role_has_attributes_of_its_own() -> None:
    class Own(Worker):
        steps = 3

        def update(self) -> int:
            return self.steps

    assert Own().update() == 3


def test_where_no_worker_can_be_made_something_else_is() -> None:
    token = instead_of_worker.set(lambda role: ("a stand-in of", role))
    try:
        stand_in: Any = Role(7)
        assert stand_in == ("a stand-in of", Role)
    finally:
        instead_of_worker.reset(token)
    assert Role(7).seen == (0, 7)


def test_the_peers_along_an_axis_are_asked_of_the_plan() -> None:
    class PeersOnly:
        def group(self, ranks: tuple[int, ...], rank: int) -> Any:
            return ranks, rank

    class Other(Worker): ...

    def rank(collectives: Any) -> Worker:
        token = current_rank.set(RankContext(rank=3, world_size=4, mesh=Mesh(dp=2, tp=2), collectives=collectives))
        try:
            return Other()
        finally:
            current_rank.reset(token)

    worker: Any = rank(PeersOnly())
    assert worker.axis("dp") == ((1, 3), 3)
    assert worker.axis("world") == ((0, 1, 2, 3), 3)
    assert rank(None).axis("pp").size == 1, "alone along this axis"
    with pytest.raises(ResourceError, match=r"HF513: Other\.axis\('dp'\) works where a plan runs the role"):
        rank(None).axis("dp")


@pytest.mark.parametrize("name", ["rank", "world_size", "mesh", "coordinates", "axis", "get_master_addr_port"])
def test_a_role_has_no_name_of_the_worker_itself(name: str) -> None:
    with pytest.raises(DefinitionError, match=rf"HF111: Bad\.{name} hides hf\.Worker\.{name}; rename it"):
        type("Bad", (Worker,), {name: 3})
    with pytest.raises(DefinitionError, match=rf"HF111: Role sets self\.{name}, which hf\.Worker tells"):
        setattr(Role(3), name, 3)
