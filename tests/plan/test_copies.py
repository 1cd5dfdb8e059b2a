"""The host memory that a plan predicts for copies of states."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.plan.copies import copy_lines, pool_copies
from hfdsl.protocols.mesh import Mesh


class B(hf.Dim): ...


class Rows(hf.Batch):
    text: hf.Obj[str, B]


class Trainer(hf.Worker):
    @staticmethod
    def kept_bytes(mesh: Mesh, parameters: int) -> dict[str, int]:
        return {"weights": 4 * parameters // mesh.tp, "moments": 8 * parameters // mesh.tp}

    def __init__(self, parameters: int) -> None:
        self.parameters = parameters

    @register(Dispatch.DP_PROTO)
    def work(self, rows: Rows) -> Rows:
        return rows

    def state(self) -> dict[str, Any]:
        return {}


class Own(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def work(self, rows: Rows) -> Rows:
        return rows

    def state(self) -> dict[str, Any]:
        return {}


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def work(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def program(rows: Rows, trainer: Trainer, own: Own, judge: Judge) -> Rows:
    return own.work(judge.work(trainer.work(rows)))


@hf.dataflow
def only(rows: Rows, trainer: Trainer) -> Rows:
    return trainer.work(rows)


SECOND = "as much on the node that keeps the second one"


def plan(nodes: list[int], tp: int = 1) -> Any:
    train = hf.ResourcePool(nodes, use_gpu=False, name="train")
    others = hf.ResourcePool([1], use_gpu=False, name="others")
    return program.compile(
        hf.Deployment(
            trainer=hf.place(Trainer, 2**20, pool=train, mesh=hf.Mesh(dp=sum(nodes) // tp, tp=tp)),
            own=hf.place(Own, pool=others),
            judge=hf.place(Judge, pool=others),
        )
    )


@pytest.mark.parametrize(("nodes", "tp", "mebibytes"), [([4], 1, 48), ([4, 2], 1, 48), ([4, 4], 2, 24)])
def test_the_copies_of_a_pool_are_the_states_of_its_fullest_node(nodes: list[int], tp: int, mebibytes: int) -> None:
    trained, others = pool_copies(plan(nodes, tp), hf.Retries(every=10))
    assert (trained.pool.name, trained.bytes, trained.peer_bytes, trained.unknown) == ("train", mebibytes << 20, 0, ())
    assert (others.pool.name, others.bytes, others.unknown) == ("others", 0, ("own",))  # a judge keeps no state
    trained, _ = pool_copies(plan(nodes, tp), hf.Retries(every=10, copies="peers"))
    assert trained.peer_bytes == trained.bytes  # the other pool may be on a node of its own


def test_copies_in_words() -> None:
    assert list(copy_lines(plan([4, 2]), hf.Retries(every=10, copies="peers"))) == [
        "copies   every 10 steps, each on its own node and on another one",
        f"         train 48.0 MiB of host memory on each node, and {SECOND}; twice while the next copy is made",
        "         others what own keeps; twice while the next copy is made",
    ]
    assert list(copy_lines(plan([4]), hf.Retries(every=None))) == []


@pytest.mark.parametrize(("nodes", "second"), [([4], False), ([2, 2], True)])
def test_a_pool_of_one_node_has_no_second_copy(nodes: list[int], second: bool) -> None:
    pool = hf.ResourcePool(nodes, use_gpu=False)
    alone = only.compile(hf.Deployment(trainer=hf.place(Trainer, 2**20, pool=pool)))
    first, of_pool = copy_lines(alone, hf.Retries(copies="peers"))
    assert first.endswith("on its own node and on another one" if second else "on its own node: there is no second one")
    assert (SECOND in of_pool) == second
