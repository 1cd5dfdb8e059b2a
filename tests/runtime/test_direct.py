"""Tensors from actor to actor without the object store, by memory that they lend each other."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.errors import LostProcessError
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.runtime.rank.store import CopiedTensors
from hfdsl.runtime.transports.direct import TRANSPORT, DirectTransport, Links, register
from hfdsl.runtime.transports.serialization import content_of, pickle_content, pickle_value
from hfdsl.single_controller.waiting import fetch
from hfdsl.types.ragged import Jagged
from tests.runtime import direct_programs as p


def start(ray: Any, count: int, **options: Any) -> list[Any]:
    register()
    actor = ray.remote(enable_tensor_transport=True)(p.Process)
    actors = [actor.options(num_cpus=0.5, **options).remote() for _ in range(count)]
    # Ray registers actors in the background: the search for leaks has to see those of a fixture before its first test.
    ray.get([actor.has_store.remote() for actor in actors])
    return actors


def end(ray: Any, actors: list[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


def direct(method: Any) -> Any:
    return method.options(tensor_transport=TRANSPORT)


@pytest.fixture(scope="module")
def actors(ray_cluster: Any) -> Iterator[list[Any]]:
    started = start(ray_cluster, 3)
    links = Links(started, 60)
    assert links.reached == {(maker, reader) for maker in range(3) for reader in range(3) if maker != reader}
    yield started
    links.close()
    end(ray_cluster, started)


@pytest.fixture(scope="module")
def pair(ray_cluster: Any) -> Iterator[list[Any]]:
    """Two that tests join, one test after the other."""
    started = start(ray_cluster, 2)
    yield started
    end(ray_cluster, started)


def test_a_parcel_opened_where_it_was_sealed_holds_the_same_memory() -> None:
    columns = p.values("cpu")
    opened = pickle_value({"columns": columns, "more": [1, None]}, "cpu").load()
    assert opened["more"] == [1, None]
    for name, tensor in columns.items():
        assert opened["columns"][name].tolist() == tensor.tolist()
        assert (opened["columns"][name].data_ptr() == tensor.data_ptr()) == tensor.is_contiguous()


def test_a_parcel_holds_nothing_once_it_is_let_go() -> None:
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    content = {ColumnSlice(0, 0, "x", None): tensor, ColumnSlice(0, 0, "y", None): Jagged(tensor, torch.tensor([0, 3]))}
    del tensor
    gc.disable()  # which would find it later
    try:
        arrived = content_of(pickle_content(content))
        content.clear()
        assert [value.tolist() for value in (arrived[ColumnSlice(0, 0, "x", None)],)] == [[1.0] * 3]
        arrived = {}
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("holder", [dict, CopiedTensors])
def test_tensors_in_objects_are_copied_once(holder: type[dict[str, Any]]) -> None:
    """A role may write its own; those that were copied for the payload are sent as they are."""
    tensor = torch.ones(3)
    key = ColumnSlice(0, 0, "weights", None)
    parcel = pickle_content({key: holder(w={((0, 3),): tensor})})
    [sent] = parcel.tensors.tensors
    assert (sent.data_ptr() == tensor.data_ptr()) == (holder is CopiedTensors)
    tensor.zero_()
    assert content_of(parcel)[key]["w"][(0, 3),].tolist() == [holder is dict] * 3


def test_tensors_of_another_device_travel_with_the_rest() -> None:
    parcel = pickle_value({"x": p.values("cpu")["rows"]}, "cuda")
    assert parcel.tensors.tensors == []
    assert parcel.load()["x"].tolist() == p.values("cpu")["rows"].tolist()


def test_every_kind_of_tensor_arrives_at_every_reader(ray_cluster: Any, actors: list[Any]) -> None:
    parcel = direct(actors[0].all_kinds).remote()
    assert ray_cluster.get([reader.wrong.remote(parcel) for reader in actors[1:]]) == [[], []]


def test_the_store_of_arrivals_exists_before_the_first(ray_cluster: Any, pair: list[Any]) -> None:
    assert ray_cluster.get([actor.has_store.remote() for actor in pair]) == [False, False]
    links = Links(pair, 60)
    assert ray_cluster.get([actor.has_store.remote() for actor in pair]) == [True, True]
    links.close()


def test_the_producer_reads_its_own_memory(ray_cluster: Any, actors: list[Any]) -> None:
    ray_cluster.get(actors[0].make.remote(10, 1.0))
    assert ray_cluster.get(actors[0].is_my_own.remote(direct(actors[0].ship).remote()))


@pytest.mark.parametrize("columns", [False, True])
def test_weights_are_copied_when_a_call_takes_them_and_columns_before(columns: bool) -> None:
    """So weights that wait for calls of their reader wait in their producer alone."""
    tensor, key = torch.ones(3), ColumnSlice(0, 0, "weights", None)
    parcel, transport = pickle_content({key: tensor if columns else {"w": tensor}}), DirectTransport()
    metadata: Any = transport.extract_tensor_transport_metadata("id", [parcel.tensors])
    [parcel.tensors] = transport.recv_multiple_tensors("id", metadata, None)
    with Path(metadata.shared[0].locations[0]).open("r+b") as file:
        file.write(torch.full((3,), 2.0).numpy().tobytes())
    value = content_of(parcel)[key]
    assert (value if columns else value["w"]).tolist() == [1.0 if columns else 2.0] * 3
    transport.garbage_collect("id", metadata, [])


def test_weights_stay_until_the_calls_that_wait_for_them_have_ended(ray_cluster: Any, actors: list[Any]) -> None:
    """Also where the driver has dropped its references to them long before."""
    loads = []
    for version in range(4):
        ray_cluster.get(actors[0].make.remote(1000, float(version)))
        loads.append(actors[1].load_after.remote(0.3, direct(actors[0].ship_weights).remote()))
    gc.collect()
    assert ray_cluster.get(loads) == [0.0, 1.0, 2.0, 3.0]
    until = time.monotonic() + 30
    while ray_cluster.get(actors[0].lending.remote()) > 1:
        assert time.monotonic() < until


@pytest.mark.nightly
def test_weights_of_a_process_that_is_gone_are_a_loss(ray_cluster: Any) -> None:
    """So a run with retries goes back, and does not take it for an error of the role that loads."""
    pair = start(ray_cluster, 2)
    links = Links(pair, 60)
    ray_cluster.get(pair[0].make.remote(1000, 1.0))
    parcel = direct(pair[0].ship_weights).remote()
    busy, load = pair[1].load_after.remote(0.0, parcel), pair[1].load_after.remote(1.0, parcel)
    assert ray_cluster.get(busy) == 1.0
    ray_cluster.kill(pair[0])
    with pytest.raises(LostProcessError, match=r"HF806: .*may be gone"):
        fetch([load])
    links.close()
    end(ray_cluster, pair[1:])


def test_everybody_sends_to_everybody_at_once(ray_cluster: Any, actors: list[Any]) -> None:
    for turn in range(5):
        ray_cluster.get([actor.make.remote(1000, float(turn * 3 + rank)) for rank, actor in enumerate(actors)])
        parcels = [direct(actor.ship).remote() for actor in actors]
        results = [
            actors[(rank + step) % 3].hold.remote(parcel) for step in (1, 2) for rank, parcel in enumerate(parcels)
        ]
        assert ray_cluster.get(results) == [float(turn * 3 + rank) for _ in (1, 2) for rank in range(3)]


def test_nothing_stays_when_the_reference_is_gone(ray_cluster: Any, actors: list[Any]) -> None:
    from ray._private.worker import global_worker

    ray_cluster.get(actors[0].make.remote(10, 1.0))
    keys = []
    for _ in range(20):
        parcel = direct(actors[0].ship).remote()
        ray_cluster.get(actors[1].hold.remote(parcel))
        keys.append(parcel.hex())
        del parcel
    until = time.monotonic() + 30
    while any(ray_cluster.get([actor.stored.remote() for actor in actors])):
        assert time.monotonic() < until
    assert ray_cluster.get(actors[0].lending.remote()) == 1, "the sample that it lent when it was joined"
    assert not any(map(global_worker.rdt_manager.is_managed_object, keys))


def test_a_failing_producer_is_reported_to_the_reader(ray_cluster: Any, actors: list[Any]) -> None:
    parcel = direct(actors[0].fails).remote()
    with pytest.raises(KeyError, match="no such parcel"):
        ray_cluster.get(actors[1].hold.remote(parcel))
    parcel = direct(actors[0].all_kinds).remote()
    assert ray_cluster.get(actors[1].wrong.remote(parcel)) == []


def test_a_broadcast_reaches_every_rank(ray_cluster: Any, actors: list[Any]) -> None:
    ray_cluster.get([actor.make.remote(100, float(rank)) for rank, actor in enumerate(actors)])
    assert ray_cluster.get([actor.broadcast.remote([0, 1, 2], 1) for actor in actors]) == [1.0] * 3
    for ranks in ([0, 2], [2, 0], [0, 2]):  # a pair that sends each other tensors too, and a group made again
        ray_cluster.get([actors[rank].make.remote(100, float(rank)) for rank in ranks])
        results = [actors[rank].broadcast.remote(ranks, 0) for rank in ranks]
        assert ray_cluster.get(results, timeout=60) == [float(ranks[0])] * 2


def test_actors_that_were_not_joined_are_refused(ray_cluster: Any, actors: list[Any]) -> None:
    (alone,) = start(ray_cluster, 1)
    with pytest.raises(ValueError, match="does not have tensor transport HFDSL"):
        direct(alone.ship).remote()
    links = Links([alone], 60)
    # Once the parcel is made, and so known to the driver, Ray asks for the way to the reader at once.
    parcel = direct(alone.all_kinds).remote()
    assert ray_cluster.get(alone.wrong.remote(parcel)) == []
    with pytest.raises(ValueError, match="were not joined by the same Links"):
        actors[0].wrong.remote(parcel)
    links.close()
    end(ray_cluster, [alone])


def test_processes_keep_mappings_while_they_are_joined(ray_cluster: Any, pair: list[Any]) -> None:
    for keep in (True, False):
        links = Links(pair, 60, keep)
        assert ray_cluster.get([actor.stays_mapped.remote() for actor in pair]) == [keep, keep]
        links.close()
        assert ray_cluster.get([actor.stays_mapped.remote() for actor in pair]) == [False, False]


def test_a_lost_producer_ends_the_wait_of_its_reader(ray_cluster: Any, pair: list[Any]) -> None:
    """The last of the pair: one of them ends."""
    links = Links(pair, 60)
    try:
        ray_cluster.get(pair[0].make.remote(10, 1.0))
        parcel = direct(pair[0].ship).remote()
        assert ray_cluster.get(pair[1].hold.remote(parcel)) == 1.0
        lender = Path(f"/proc/{ray_cluster.get(pair[0].pid.remote())}")
        ray_cluster.kill(pair[0])
        until = time.monotonic() + 60
        while lender.exists():  # what is lent is there as long as the process is
            assert time.monotonic() < until
        with pytest.raises(ray_cluster.exceptions.RayError) as caught:
            ray_cluster.get(pair[1].hold.remote(parcel), timeout=60)
        assert not isinstance(caught.value, ray_cluster.exceptions.GetTimeoutError)
    finally:
        links.close()
