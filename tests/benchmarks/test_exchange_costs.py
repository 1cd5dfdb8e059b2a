"""The small exchanges whose CPU time is measured are those of whole models, message for message."""

from __future__ import annotations

from unittest import mock

import pytest

import hfdsl as hf
from benchmarks import exchange_costs as e
from benchmarks.gpu.models import SIZES, Size
from hfdsl.plan import buckets
from hfdsl.plan.resharding import Schedule, compile_schedule
from hfdsl.protocols.layouts import Replicas


def messages(schedule: Schedule) -> list[tuple[list[str], list[bool]]]:
    """The parameters of each message, and which of its parts travel by themselves."""
    return [
        (
            [transfer.parameter.name for transfer in message.transfers],
            [transfer.bytes >= message.direct_bytes for transfer in message.transfers],
        )
        for bucket in schedule.messages_to(0)
        for message in bucket
    ]


@pytest.mark.parametrize("way", e.WAYS)
@pytest.mark.parametrize("size", e.SIZES)
def test_small_exchanges_have_the_messages_of_whole_models(size: str, way: str) -> None:
    mesh, layout = hf.Mesh(), e.WAYS[way]
    whole = messages(compile_schedule(SIZES[size].parameters(), layout, mesh, Replicas(), mesh))
    with e.smaller():
        assert messages(e.Sides(e.SIZES[size], layout).sync.schedule) == whole


def test_rows_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.dict(e.SIZES, clear=True, tiny=Size(64, 172, 1, 64)):
        e.main(["--times", "1"])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["tiny", way, side] for way in e.WAYS for side in ("sends", "receives")
    ]
    assert buckets.SEND_BYTES == 2**24
