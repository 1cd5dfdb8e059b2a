"""Programs of the field: plain Ray, colocated roles, groups found again by name, modes registered in the driver."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from hfdsl.errors import DefinitionError, ResourceError, WiringError
from hfdsl.single_controller import (
    Dispatch,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    collect_all_to_all,
    create_colocated_worker_cls,
    register,
    register_dispatch_mode,
)
from tests.single_controller import roles


def test_plain_ray_programs(ray_cluster: Any) -> None:
    ray = ray_cluster

    def square(x: int) -> int:
        return x * x

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, x: int) -> int:
            self.count += x
            return self.count

    counter = ray.remote(Counter).remote()
    task = ray.remote(square)
    assert ray.get([task.remote(x) for x in (1, 2)]) == [1, 4]
    assert ray.get([counter.add.remote(x) for x in (1, 2)]) == [1, 3]
    ray.kill(counter)


@pytest.mark.usefixtures("modes")
def test_classes_of_a_notebook_and_modes_registered_in_it(pair: RayResourcePool) -> None:
    def reversed_ranks(group: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(list(reversed(arg)) for arg in args), kwargs

    mode = register_dispatch_mode("REVERSED", reversed_ranks, collect_all_to_all)

    class Notebook(Worker):  # no importable module holds it: it travels by value, its mode too
        @register(mode)
        def give(self, x: int) -> int:
            return x

        @register(Dispatch.ONE_TO_ALL)
        def knows(self) -> str:
            from hfdsl.protocols import Dispatch

            return Dispatch("REVERSED").name

    Notebook.__module__ = "__main__"
    with RayWorkerGroup(pair, RayClassWithInitArgs(Notebook)) as group:
        assert group.give([1, 2]) == [2, 1]
        assert group.knows() == ["REVERSED"] * 2


@pytest.mark.usefixtures("modes")
def test_a_mode_of_lambdas_at_module_level(pair: RayResourcePool) -> None:
    from tests.single_controller import lambda_mode  # here, since it registers the mode

    with RayWorkerGroup(pair, RayClassWithInitArgs(lambda_mode.ByLambda)) as group:
        assert group.give(3) == 4
        assert group.knows() == ["TESTS_LAMBDA"] * 2

    class Local(Worker):  # sent by value: the mode arrives before the module that registers it is imported
        @register(lambda_mode.LAMBDA)
        def give(self, x: int) -> int:
            from tests.single_controller import lambda_mode

            return x + int(lambda_mode.LAMBDA is Dispatch("TESTS_LAMBDA"))

    with RayWorkerGroup(pair, RayClassWithInitArgs(Local)) as group:
        assert group.give(3) == 4


def test_roles_that_share_processes(pair: RayResourcePool, accumulators: RayWorkerGroup) -> None:
    rollouts = RayClassWithInitArgs(roles.ActorRollout, b=10)
    role_classes = {"actor": RayClassWithInitArgs(roles.Actor), "actor_rollout": rollouts}
    with RayWorkerGroup(pair, create_colocated_worker_cls(role_classes)) as group:
        spawned = group.spawn(prefix_set=role_classes.keys())
        actor, rollout = spawned["actor"], spawned["actor_rollout"]
        pids = [name.split()[-1] for name in actor.name()]
        assert [name.split()[:2] for name in rollout.name()] == [["rollout", "10"]] * 2
        assert [name.split()[-1] for name in rollout.name()] == pids
        assert len({*pids, str(os.getpid())}) == 3
        assert actor.add_one([1, 2, 3, 4]) == [2, 3, 4, 5]
        assert actor.execute_all_sync("name") == actor.name()
        assert group.actor_name() == actor.name()
        assert group.execute_rank_zero_sync("actor_rollout_name")[:7] == "rollout"
        with pytest.raises(WiringError, match=r"HF202: group Actor has no registered method 'rollout_name'"):
            actor.rollout_name()  # "actor" is not a prefix of "actor_rollout"'s methods
        with pytest.raises(ResourceError, match=r"HF507: .* has no role 'critic'; its roles are actor, actor_rollout"):
            group.spawn(["critic"])
    with pytest.raises(ResourceError, match=r"its roles are none"):
        accumulators.spawn(["actor"])


def test_colocated_roles_without_meaning() -> None:
    actor = RayClassWithInitArgs(roles.Actor)
    for role_classes in (
        {},
        {"a b": actor},
        {"actor": roles.Actor},
        {"actor": create_colocated_worker_cls({"a": actor})},
    ):
        with pytest.raises(DefinitionError, match=r"HF112"):
            create_colocated_worker_cls(role_classes)  # type: ignore[arg-type]

    class Clash(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def rollout_name(self) -> None: ...

    with pytest.raises(DefinitionError, match=r"HF111: roles 'actor' and 'actor_rollout' both have 'actor_rollout"):
        create_colocated_worker_cls(
            {"actor": RayClassWithInitArgs(Clash), "actor_rollout": RayClassWithInitArgs(roles.ActorRollout, b=1)}
        )


def test_a_group_is_found_again_by_name(methods: RayWorkerGroup, ray_cluster: Any) -> None:
    def elsewhere(names: list[str]) -> Any:
        group = RayWorkerGroup.from_detached(names, RayClassWithInitArgs(roles.Methods, x=2))
        return group.worker_names, group.custom(x=[1, 2], y=[5, 6]), group.rank_zero(x=1, y=2), group.master_port

    names = methods.worker_names
    attached = ray_cluster.get(ray_cluster.remote(elsewhere).remote(list(reversed(names))))
    assert attached == (names, [8, 10, 8, 10], 5, methods.master_port)
    with pytest.raises(ResourceError, match=r"HF521: no worker of this name"):
        RayWorkerGroup.from_detached(["nobody"], RayClassWithInitArgs(roles.Methods, x=2))
    with pytest.raises(ResourceError, match=r"HF521: these workers are ranks \[0, 2\] of 4"):
        RayWorkerGroup.from_detached([names[0], names[2]], RayClassWithInitArgs(roles.Methods, x=2))
    stranger = ray_cluster.remote(roles.Child).remote(1)
    with pytest.raises(ResourceError, match=r"HF521: .* is not a worker of a group"):
        RayWorkerGroup.from_detached(worker_handles=[stranger], ray_cls_with_init=RayClassWithInitArgs(roles.Actor))
    with pytest.raises(ResourceError, match=r"HF521.*got none"):
        RayWorkerGroup.from_detached([], RayClassWithInitArgs(roles.Methods, x=2))


def test_a_detached_group_outlives_its_owner(ray_cluster: Any) -> None:
    pool = RayResourcePool([1], use_gpu=False, detached=True)
    names = RayWorkerGroup(pool, RayClassWithInitArgs(roles.Accumulator, 5), name_prefix="kept").worker_names
    assert names == ["keptAccumulator_0:0"]
    attached = RayWorkerGroup.from_detached(
        worker_names=names, ray_cls_with_init=RayClassWithInitArgs(roles.Accumulator)
    )
    assert attached.execute_all_sync("add", x=1) == [6]
    attached.shutdown()
    pool.shutdown()


def test_the_meeting_port_stays_ours_until_we_listen(accumulators: RayWorkerGroup) -> None:
    def meet() -> tuple[bool, bool]:
        port = int(os.environ["MASTER_PORT"])
        with socket.socket() as stranger:  # another program does not get it
            try:
                stranger.bind(("", port))
                is_taken = False
            except OSError:
                is_taken = True
        with socket.socket() as store:  # the rendezvous of the group does
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind(("", port))
            store.listen()
        return is_taken, True

    assert accumulators.execute_func_rank_zero(meet) == (True, True)


def test_torch_meets_at_the_port(pair: RayResourcePool) -> None:
    pytest.importorskip("torch")

    class Summing(Worker):
        @register(Dispatch.ONE_TO_ALL)
        def total(self) -> float:
            import torch
            from torch import distributed

            distributed.init_process_group("gloo")
            value = torch.tensor(float(self.rank))
            distributed.all_reduce(value)
            distributed.destroy_process_group()
            return value.item()

    with RayWorkerGroup(pair, RayClassWithInitArgs(Summing)) as group:
        assert group.total() == [1.0, 1.0]
