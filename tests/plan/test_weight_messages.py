"""Messages of a schedule: bucket by bucket, in rounds that need no rank to wait for a busy one."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hfdsl.plan.resharding import Schedule, compile_schedule
from hfdsl.protocols.layouts import (
    Parameter,
    Replicas,
    Slices,
)
from hfdsl.protocols.mesh import Mesh
from tests.plan.resharding_cases import Case, Element, elements


@given(st.data(), st.integers(8, 200))
def test_messages_carry_every_element_once_in_buckets_of_the_planned_size(data: st.DataObject, most: int) -> None:
    case = Case(data)
    assume(case.complete())
    schedule = case.schedule(most)
    sent = [schedule.messages_from(rank) for rank in range(case.source_mesh.world_size)]
    for rank in range(case.target_mesh.world_size):
        arrived, sizes = list[Element](), [0]
        for number, bucket in enumerate(schedule.messages_to(rank)):
            leaving = {message for by_bucket in sent for message in by_bucket[number] if message.target == rank}
            assert leaving == set(bucket)
            assert len({message.source for message in bucket}) == len(bucket)
            transfers = [transfer for message in bucket for transfer in message.transfers]
            assert all(transfer.source == message.source for message in bucket for transfer in message.transfers)
            arrived += [
                element for transfer in transfers for element in elements(transfer.parameter.name, (transfer.box,))
            ]
            sizes.append(sum(transfer.bytes for transfer in transfers))
        assert Counter(arrived) == Counter(
            element
            for transfer in schedule.received_by(rank)
            for element in elements(transfer.parameter.name, (transfer.box,))
        )
        assert max(map(sum, pairwise(sizes)), default=0) <= schedule.peak[rank] - schedule.needed[rank]


def rounds(schedule: Schedule) -> tuple[int, int]:
    """The messages of ranks that block: a send ends with its receive, and only then either continues with its next.

    Returns how many rounds of equal messages that takes, and how many are left when nobody can continue.
    """
    sides = (schedule.messages_from, schedule.source_mesh), (schedule.messages_to, schedule.target_mesh)
    senders, receivers = (
        [[message for bucket in messages(rank) for message in bucket] for rank in range(mesh.world_size)]
        for messages, mesh in sides
    )
    for number in count():
        met = [own[0] for own in senders if own and receivers[own[0].target][0] == own[0]]
        for message in met:
            del senders[message.source][0], receivers[message.target][0]
        if not met:
            return number, sum(map(len, senders)) + sum(map(len, receivers))
    raise AssertionError


@given(st.data(), st.integers(8, 200))
def test_ranks_that_block_in_each_message_go_on_to_the_last(data: st.DataObject, most: int) -> None:
    case = Case(data)
    assume(case.complete())
    assert rounds(case.schedule(most))[1] == 0


@pytest.mark.parametrize(("senders", "receivers"), [(4, 4), (2, 6), (6, 2)])
def test_all_ranks_of_the_smaller_side_are_busy_in_every_round(senders: int, receivers: int) -> None:
    weights = [Parameter("weight", (12, 4), "float32")]
    schedule = compile_schedule(weights, Slices(0), Mesh(tp=senders), Replicas(), Mesh(dp=receivers), bucket_bytes=64)
    messages = sum(len(bucket) for rank in range(senders) for bucket in schedule.messages_from(rank))
    assert messages > 2 * senders * receivers
    assert rounds(schedule) == (messages // min(senders, receivers), 0)


def test_buckets_keep_the_order_and_bound_the_peak() -> None:
    weights = [Parameter(f"w{i}", (size,), "int8") for i, size in enumerate((40, 30, 50, 120, 10))]
    schedule = compile_schedule(weights, Replicas(), Mesh(), Replicas(), Mesh(), bucket_bytes=100)
    names = [[share.parameter.name for share in bucket.shares] for bucket in schedule.buckets]
    assert names == [["w0"], ["w1"], ["w2"], ["w3"], ["w3"], ["w3", "w4"]]
    assert [bucket.bytes for bucket in schedule.buckets] == [40, 30, 50, 40, 40, 50]
    assert (schedule.needed, schedule.peak, len(schedule.messages_to(0))) == ((250,), (350,), 6)
    whole = compile_schedule(weights, Replicas(), Mesh(), Replicas(), Mesh(), bucket_bytes=0)
    assert whole.peak == (250,)
