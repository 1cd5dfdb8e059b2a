"""Tensors from GPU to GPU and between processes of one GPU, without the object store."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hfdsl.runtime.transports.device_memory import UNMAP_AFTER_TRANSFERS
from hfdsl.runtime.transports.direct import TRANSPORT, Links, register
from tests.gpu.direct_programs import GpuProcess

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    register()
    yield ray
    ray.shutdown()


@pytest.fixture
def started(ray: Any) -> Iterator[tuple[list[Any], Links]]:
    """Three processes of one GPU, and one of another where there is another."""
    actor = ray.remote(enable_tensor_transport=True)(GpuProcess)
    actors = [actor.options(num_gpus=0.3, num_cpus=0).remote() for _ in range(3)]
    ray.get([actor.drop.remote() for actor in actors])
    if torch.cuda.device_count() > 1:
        actors.append(actor.options(num_gpus=1, num_cpus=0).remote())
    links = Links(actors, 60)
    assert len({location.gpu for location in links.locations[:3]}) == 1
    yield actors, links
    links.close()
    for process in actors:
        ray.kill(process)


def direct(method: Any) -> Any:
    return method.options(tensor_transport=TRANSPORT)


def test_every_kind_of_tensor_arrives_at_every_reader(ray: Any, started: Any) -> None:
    actors, links = started
    assert {(0, rank) for rank in range(1, len(actors))} <= links.reached
    for _ in range(3):
        parcel = direct(actors[0].all_kinds).remote()
        assert ray.get([reader.wrong.remote(parcel) for reader in actors[1:]]) == [[]] * (len(actors) - 1)


def test_every_reader_has_its_own_copy_and_nothing_else_stays(ray: Any, started: Any) -> None:
    (producer, *readers), _links = started
    size = 2**22
    ray.get([actor.drop.remote() for actor in started[0]])
    ray.get(producer.make.remote(size, 1.0))
    parcel = direct(producer.ship).remote()
    assert ray.get([reader.hold.remote(parcel) for reader in readers]) == [1.0] * len(readers)
    ray.get(readers[0].write.remote(2.0))
    assert ray.get(producer.look.remote()) == 1.0
    del parcel
    ray.get(producer.drop.remote())
    for _ in range(3):
        ray.get(producer.overwrite.remote(size))
    assert ray.get([reader.look.remote() for reader in readers[1:]]) == [1.0] * len(readers[1:])
    until = time.monotonic() + 30
    while ray.get(producer.allocated.remote()) >= 4 * size:
        assert time.monotonic() < until


def test_readers_wait_for_pending_kernels_of_the_sender(ray: Any, started: Any) -> None:
    (producer, *readers), _links = started
    ray.get(producer.make.remote(2**20, 1.0))
    for fill in (2.0, 3.0):
        producer.make_late.remote(2**20, fill)
        parcel = direct(producer.ship).remote()
        assert ray.get([reader.hold.remote(parcel) for reader in readers]) == [fill] * len(readers)


def gone(ray: Any, maker: Any) -> None:
    """Wait until Ray has released all blocks that a sender exports."""
    until = time.monotonic() + 30
    while ray.get(maker.stored.remote()):
        assert time.monotonic() < until


def test_freed_blocks_never_stay_mapped(ray: Any, started: Any) -> None:
    (maker, *readers), _links = started
    size = 2**24  # in a block of its own
    for turn in range(24):
        ray.get(maker.renew.remote(size, float(turn), turn % 4))
        for _ in range(2):  # newly mapped, then from the kept mapping
            parcel = direct(maker.ship).remote()
            assert ray.get([reader.hold.remote(parcel) for reader in readers]) == [float(turn)] * len(readers)
            del parcel
            gone(ray, maker)
        mapped = ray.get([reader.mapped.remote() for reader in readers])
        assert all(1 <= count <= UNMAP_AFTER_TRANSFERS for count in mapped), mapped


def test_memory_is_given_back_when_links_are_closed(ray: Any, started: Any) -> None:
    (maker, *readers), links = started
    size = 2**28

    def free() -> int:
        return int(ray.get([actor.free.remote() for actor in (*readers, maker)])[-1])

    def read_and_dropped() -> None:
        ray.get(maker.make.remote(size, 1.0))
        parcel = direct(maker.ship).remote()
        assert ray.get([reader.hold.remote(parcel) for reader in readers]) == [1.0] * len(readers)
        del parcel
        gone(ray, maker)
        ray.get([actor.drop.remote() for actor in (maker, *readers)])
        assert ray.get([reader.mapped.remote() for reader in readers]) == [1] * len(readers)

    read_and_dropped()  # once before it is measured: first kernels take memory of their own
    free_before = free()
    links.close()
    assert ray.get([reader.mapped.remote() for reader in readers]) == [0] * len(readers)
    until = time.monotonic() + 30
    while (back := free() - free_before) < 3 * size:  # of the four bytes a number
        assert time.monotonic() < until, f"{back} of {4 * size} bytes"


def test_a_maker_that_waits_for_its_reader_is_read_from(ray: Any, started: Any) -> None:
    """A body that waits for a number from the GPU keeps other threads of its process from launching anything."""
    actors, _links = started
    if len(actors) < 4:
        pytest.skip("too few GPUs")
    maker, reader = actors[0], actors[3]
    join(ray, [maker, reader])
    for _ in range(5):
        ray.get(maker.make.remote(2**20, 3.0))
        parcel = direct(maker.ship).remote()
        waiting = maker.body_told.remote(2**10)
        with pytest.raises(ray.exceptions.GetTimeoutError):
            ray.get(waiting, timeout=0.5)
        assert ray.get(reader.hold.remote(parcel), timeout=60) == 3.0
        ray.get([waiting, reader.body_told.remote(2**10)], timeout=60)


def join(ray: Any, pair: list[Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.get([actor.join.remote(rank, port) for rank, actor in enumerate(pair)])


def test_transfers_and_collectives_never_wait_for_each_other(ray: Any, started: Any) -> None:
    actors, _links = started
    if len(actors) < 4:
        pytest.skip("too few GPUs")
    pair = [actors[0], actors[3]]
    join(ray, pair)
    for _ in range(10):
        calls = [actor.body.remote(2**24) for actor in pair]
        parcels = [direct(actor.ship).remote() for actor in pair]
        calls += [actor.body.remote(2**16) for actor in pair]
        sums = [pair[1].hold.remote(parcels[0]), pair[0].hold.remote(parcels[1])]
        assert ray.get(sums, timeout=60) == [2.0, 2.0]
        ray.get(calls)


def test_a_broadcast_reaches_another_gpu(ray: Any, started: Any) -> None:
    actors, _links = started
    if len(actors) < 4:
        pytest.skip("too few GPUs")
    ray.get([actors[rank].make.remote(2**24, float(rank)) for rank in (0, 3)])
    assert ray.get([actors[rank].broadcast.remote([3, 0], 0) for rank in (0, 3)]) == [3.0, 3.0]
    with pytest.raises(ValueError, match="NCCL refuses two processes on one GPU"):
        ray.get(actors[0].broadcast.remote([0, 1], 0))
