"""The layouts that a sync keeps of messages and digests: they follow tensors that change, and hold no memory."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

import hfdsl as hf
from hfdsl.errors import SyncError
from hfdsl.plan.resharding import compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Parameter, Replicas, Slices
from hfdsl.runtime.digests import BegunDigests, DigestLayouts, digests
from hfdsl.runtime.weights.exchange import exported
from hfdsl.runtime.weights.held_parts import ComputedPart, FixedParts, HeldPart
from hfdsl.runtime.weights.messages import HeldParts, MessageBuffers, PartViews
from hfdsl.runtime.weights.resharding import loaded_weights
from tests.runtime.operations import Operations
from tests.runtime.test_exchange import exchanged, scheduled

pytestmark = pytest.mark.usefixtures("both_ways")

PARAMETERS = [Parameter("up", (8, 4), "float32"), Parameter("norm", (6,), "float32")]
TP = hf.Mesh(tp=2)


def sync(bucket_bytes: int = 80) -> ScheduledSync:
    """Rows from each of two ranks to one that holds all; "up" takes several buckets."""
    schedule = compile_schedule(PARAMETERS, Slices(0), TP, Replicas(), hf.Mesh(), bucket_bytes=bucket_bytes)
    return scheduled(schedule, Slices(0), Replicas())


def drawn(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {each.name: torch.randn(each.shape, generator=draw) for each in PARAMETERS}


def slices(full: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: value.chunk(2)[rank].clone() for name, value in full.items()} for rank in range(2)]


def same(got: dict[str, Any], full: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(got[name].to(value.dtype), value) for name, value in full.items())


def strided(value: torch.Tensor) -> torch.Tensor:
    """The same values, two elements apart."""
    room = torch.zeros(*value.shape, 2)
    room[..., 0] = value
    return room[..., 0]


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "storage": torch.clone,
    "strides": strided,
    "dtype": torch.Tensor.double,
    "offset in the storage": lambda value: torch.cat([value.new_zeros(1, *value.shape[1:]), value])[1:],
}


@pytest.mark.parametrize("changed", CHANGES)
def test_tensors_of_a_source_that_change_are_sent_as_they_are(changed: str) -> None:
    kept, first, second = sync(), drawn(0), drawn(1)
    held, got = slices(first), [{name: torch.zeros_like(value) for name, value in first.items()}]
    for full in (first, second):
        assert exchanged(kept, held, got)[1] == []
        assert same(got[0], full)
        held = [{name: CHANGES[changed](value) for name, value in each.items()} for each in slices(second)]


@pytest.mark.parametrize("changed", CHANGES)
def test_tensors_of_a_target_that_change_are_written_where_they_are(changed: str) -> None:
    kept, first, second = sync(), drawn(0), drawn(1)
    got = [{name: torch.zeros_like(value) for name, value in first.items()}]
    for full in (first, second):
        assert exchanged(kept, slices(full), got)[1] == []
        assert same(got[0], full)
        got = [{name: CHANGES[changed](value) for name, value in got[0].items()}]


def test_a_source_may_give_whole_parameters_after_slices_and_the_reverse() -> None:
    kept, first = sync(), drawn(0)
    for seed, held in enumerate([slices(first), [drawn(1)] * 2, slices(drawn(2))]):
        got = [{name: torch.zeros_like(value) for name, value in first.items()}]
        assert exchanged(kept, held, got)[1] == []
        assert same(got[0], drawn(seed))


def test_what_is_computed_may_follow_what_is_held() -> None:
    kept, full = sync(), drawn(0)

    def computed(rank: int) -> HeldPart:
        def tiles(first: int, last: int) -> list[tuple[int, torch.Tensor]]:
            return [(row, -full["up"][row : row + 1]) for row in range(first, last)]

        return ComputedPart(((4 * rank, 4 * rank + 4), (0, 4)), torch.float32, torch.device("cpu"), tiles)

    held: list[dict[str, Any]] = [*slices(full)]
    for sign in (1, -1, 1):
        for rank in range(2):
            held[rank]["up"] = computed(rank) if sign < 0 else slices(full)[rank]["up"]
        got = [{name: torch.zeros_like(value) for name, value in full.items()}]
        assert exchanged(kept, held, got)[1] == []
        assert same(got[0], {**full, "up": sign * full["up"]})


def test_parts_that_are_missing_the_second_time_are_named() -> None:
    kept, full = sync(), drawn(0)
    assert dict(exported([kept], 0, slices(full)[0], "actor.weights"))
    with pytest.raises(SyncError, match=r"HF773: 'actor.weights' returned 'up' of shape \(3, 4\)"):
        dict(exported([kept], 0, {**slices(full)[0], "up": full["up"][:3]}, "actor.weights"))
    with pytest.raises(SyncError, match=r"HF773: 'actor.weights' returned no 'norm'"):
        dict(exported([kept], 0, {"up": full["up"]}, "actor.weights"))


def test_nothing_that_a_role_held_is_kept_and_no_bytes_of_messages() -> None:
    kept, full = sync(), drawn(0)
    held, got = slices(full), [{name: torch.zeros_like(value) for name, value in full.items()}]
    assert exchanged(kept, held, got)[1] == []
    storages = [StorageWeakRef(value.untyped_storage()) for each in (*held, *got) for value in each.values()]
    assert not any(storage.expired() for storage in storages)
    del held, got
    gc.collect()
    assert all(storage.expired() for storage in storages)
    buffers = [each for each in kept.kept.values() if isinstance(each, MessageBuffers)]
    assert len(buffers) == 3
    assert all(
        part.untyped_storage().nbytes() == 0
        for each in buffers
        for turn in each.turns
        for message in turn
        for part in (message.packed, *message.parts.values())
    )
    assert pickle.loads(pickle.dumps(kept)).kept == {}


def test_parts_that_stay_where_they_are_are_looked_up_once_for_a_sync() -> None:
    """Which the next sync of another plan does for itself; what is derived goes with them."""
    first, second = sync(), sync(bucket_bytes=48)
    got = FixedParts({name: HeldPart(torch.zeros_like(value)) for name, value in drawn(0).items()})
    assert loaded_weights(first, 0, got, "engine.load") is loaded_weights(first, 0, got, "engine.load")
    for seed, kept in enumerate([first, second, second, first]):
        full = drawn(seed)
        assert exchanged(kept, slices(full), [got])[1] == []
        assert same({name: part.tensor for name, part in got.items()}, full)
    storages = [StorageWeakRef(part.tensor.untyped_storage()) for part in got.values()]
    del got
    gc.collect()
    assert all(storage.expired() for storage in storages)


def test_every_part_of_a_target_is_viewed_once_and_counts_as_written() -> None:
    kept, got = sync(), {name: torch.zeros_like(value) for name, value in drawn(0).items()}
    held, turns = loaded_weights(kept, 0, got, "engine.load"), kept.schedule.messages_to(0)
    views = PartViews(held, turns)
    buffers = MessageBuffers(turns, "cpu", views)
    buffers.memory.allocate()
    messages = [message for turn in buffers.turns for message in turn]
    with Operations() as operations:
        for message in messages:
            assert message.operations(HeldParts(views, held))
            views.unpack(message, held)
    assert operations.names.count("aten.as_strided.default") == sum(len(each.message.transfers) for each in messages)
    before = {name: tensor._version for name, tensor in got.items()}
    for message in messages:
        views.unpack(message, held)
    assert all(tensor._version > before[name] for name, tensor in got.items())


def test_buffers_of_an_exchange_that_has_failed_are_not_used_again() -> None:
    kept, full = sync(), drawn(0)
    got = [{name: torch.zeros_like(value) for name, value in full.items()}]
    assert exchanged(kept, slices(full), got)[1] == []
    before = {id(each) for each in kept.kept.values() if isinstance(each, MessageBuffers)}
    assert exchanged(kept, slices(full), got, last=2)[1] != []
    after = {id(each) for each in kept.kept.values() if isinstance(each, MessageBuffers)}
    assert after < before
    again = drawn(1)
    assert exchanged(kept, slices(again), got)[1] == []
    assert same(got[0], again)


@given(st.data())
def test_kept_layouts_of_digests_give_those_of_the_parts_as_they_are(data: st.DataObject) -> None:
    """One name after another kind of part: shape, dtype, offset, strides, memory, computed or held, in any order."""
    layouts = DigestLayouts()
    for _ in range(data.draw(st.integers(2, 5))):
        parts = {name: data.draw(parts_of_any_kind()) for name in ("x", "y")}
        dtypes = data.draw(st.sampled_from([{}, {"x": "bfloat16"}]))
        for _ in range(2):  # the second time in other memory, with other values
            parts = {name: moved(part) for name, part in parts.items()}
            begun = BegunDigests(dtypes, layouts)
            begun.add(parts.items())
            assert begun.digests() == digests(parts.items(), dtypes)


@st.composite
def parts_of_any_kind(draw: st.DrawFn) -> HeldPart:
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), max_size=3))
    tensor = (torch.randn(shape) * 50).to(draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8])))
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, 1)
    offset = tuple(draw(st.sampled_from([0, 1, 4, 8])) for _ in shape)
    return HeldPart(tensor, draw(st.sampled_from([offset, None])))


def moved(part: HeldPart) -> HeldPart:
    """A part of the same kind, from any element of a new storage on, with other values."""
    values, more = part.tensor, int(torch.randint(0, 4, ()))
    memory = torch.zeros(values.numel() + more, dtype=values.dtype)
    tensor = memory[more:].as_strided(values.shape, values.stride(), more)
    return HeldPart(tensor.copy_(-values), part.offset)


@given(st.data())
def test_a_part_is_computed_once_for_its_digest(data: st.DataObject) -> None:
    values, computed = torch.randn(4, data.draw(st.integers(1, 9))), list[int]()

    def tiles(first: int, last: int) -> list[tuple[int, torch.Tensor]]:
        computed.append(first)
        return [(first, values[first:last])]

    part = ComputedPart(((0, 4), (0, values.shape[1])), torch.float32, torch.device("cpu"), tiles)
    begun = BegunDigests(layouts=DigestLayouts())
    begun.add([("x", part)])
    assert begun.digests() == digests([("x", HeldPart(values))])
    assert computed == [0]
