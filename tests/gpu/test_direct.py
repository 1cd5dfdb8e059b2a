"""Tensors from GPU to GPU and between processes of one GPU, without the object store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hfdsl.runtime.direct import TRANSPORT, Links, register
from hfdsl.runtime.parcel import Parcel, seal
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
    ray.get([one.drop.remote() for one in actors])
    if torch.cuda.device_count() > 1:
        actors.append(actor.options(num_gpus=1, num_cpus=0).remote())
    links = Links(actors, 60)
    assert len({place.gpu for place in links.places[:3]}) == 1
    yield actors, links
    links.close()
    for one in actors:
        ray.kill(one)


def direct(method: Any) -> Any:
    return method.options(tensor_transport=TRANSPORT)


def test_every_kind_of_tensor_arrives_at_every_reader(ray: Any, started: Any) -> None:
    actors, links = started
    links.warm([(0, rank) for rank in range(len(actors))])
    for _ in range(3):
        parcel = direct(actors[0].all_kinds).remote()
        assert ray.get([reader.wrong.remote(parcel) for reader in actors[1:]]) == [[]] * (len(actors) - 1)


def test_within_a_gpu_readers_share_the_memory_until_the_last_lets_go(ray: Any, started: Any) -> None:
    (producer, one, other, *_), _links = started
    size = 2**22
    ray.get(producer.make.remote(size, 1.0))
    parcel = direct(producer.ship).remote()
    assert ray.get([one.hold.remote(parcel), other.hold.remote(parcel)]) == [1.0, 1.0]
    ray.get(one.write.remote(2.0))
    assert ray.get([producer.look.remote(), other.look.remote()]) == [2.0, 2.0]  # no copy was made
    del parcel
    ray.get([producer.drop.remote(), one.drop.remote()])
    for _ in range(3):
        ray.get(producer.overwrite.remote(size))
    assert ray.get(other.look.remote()) == 2.0
    ray.get(other.drop.remote())
    ray.get(producer.overwrite.remote(size))
    assert ray.get(producer.allocated.remote()) < size


def test_transfers_and_collectives_never_wait_for_each_other(ray: Any, started: Any) -> None:
    actors, links = started
    if len(actors) < 4:
        pytest.skip("too few GPUs")
    pair = [actors[0], actors[3]]
    links.warm([(0, 3)])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.get([one.join.remote(rank, port) for rank, one in enumerate(pair)])
    for _ in range(10):
        calls = [one.body.remote(2**24) for one in pair]
        parcels = [direct(one.ship).remote() for one in pair]
        calls += [one.body.remote(2**16) for one in pair]
        read = [pair[1].hold.remote(parcels[0]), pair[0].hold.remote(parcels[1])]
        assert ray.get(read, timeout=60) == [2.0, 2.0]
        ray.get(calls)


def test_a_broadcast_reaches_another_gpu(ray: Any, started: Any) -> None:
    actors, _links = started
    if len(actors) < 4:
        pytest.skip("too few GPUs")
    ray.get([actors[rank].make.remote(2**24, float(rank)) for rank in (0, 3)])
    assert ray.get([actors[rank].broadcast.remote([3, 0], 0) for rank in (0, 3)]) == [3.0, 3.0]
    with pytest.raises(ValueError, match="NCCL refuses two processes on one GPU"):
        ray.get(actors[0].broadcast.remote([0, 1], 0))


def test_sealing_waits_for_nothing() -> None:
    ones = torch.ones(3, device="cuda")
    seal(ones)
    torch.cuda._sleep(2 * 10**9)  # the device is busy for about a second
    parcel = seal(ones)
    assert isinstance(parcel, Parcel)
    assert not parcel.tensors.ready.query()
    torch.cuda.synchronize()
