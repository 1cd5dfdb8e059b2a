"""The store: local and received payloads read the same, and nothing outlives its last reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import WiringError
from hfdsl.plan.payloads import ColumnSlice, Payload
from hfdsl.protocols.ranges import merged
from hfdsl.runtime.rank.store import Store, StoredValue, UndeliveredError, memory_of, writable
from hfdsl.types.ragged import Jagged

ROWS = 9


def columns() -> dict[str, Any]:
    lengths = torch.tensor([i % 3 for i in range(ROWS)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return {
        "x": torch.arange(ROWS * 2).view(ROWS, 2),
        "name": [f"n{i}" for i in range(ROWS)],
        "ids": Jagged(torch.arange(int(offsets[-1])), offsets),
        "gone": None,
    }


def plain(value: Any) -> Any:
    if isinstance(value, Jagged):
        return [value.values[a:b].tolist() for a, b in zip(value.offsets, value.offsets[1:], strict=False)]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@given(st.lists(st.integers(0, 2), min_size=ROWS, max_size=ROWS), st.sets(st.integers(0, ROWS - 1)))
def test_rows_out_of_parcels_are_the_rows_that_were_kept(parts: list[int], wanted: set[int]) -> None:
    """Every row goes into one of three payloads; what is read of them is what is read where it was made."""
    maker, reader = Store(), Store()
    maker.put(4, 1, StoredValue.of("role.make", columns()))
    for number in range(3):
        rows = merged([(row, row + 1) for row in range(ROWS) if parts[row] == number]) or ((0, 0),)
        cuts = tuple(ColumnSlice(4, 1, name, rows) for name in columns())
        reader.receive(maker.extract(Payload((4, 0, number), cuts)))
    spans = merged((row, row + 1) for row in wanted) or ((2, 2),)
    for name in columns():
        assert plain(reader.read(4, name, 1, spans)) == plain(maker.read(4, name, 1, spans))
    assert plain(maker.read(4, "x", 1, spans)) == columns()["x"][sorted(wanted)].tolist()


def test_dropped_payloads_are_released_and_the_peak_is_kept() -> None:
    store = Store()
    store.put(0, 0, StoredValue.of("role.make", {"x": torch.zeros(4)}))
    store.receive({ColumnSlice(1, 0, "x", ((0, 2),)): torch.zeros(2)})
    store.drop(0)
    store.receive({ColumnSlice(1, 0, "x", ((2, 3),)): torch.zeros(1)})
    assert store.peak_bytes == 24
    for node in (0, 2):
        with pytest.raises(UndeliveredError):
            store.read(node, "x", 0, ((0, 1),))
    store.clear()
    assert store.peak_bytes == 0


def test_a_value_that_was_written_after_it_was_kept_is_reported() -> None:
    store, column = Store(), torch.zeros(4)
    store.put(0, 0, StoredValue.of("role.make", {"x": column}))
    column[0] = 1
    payload = Payload((0, 0, 0), (ColumnSlice(0, 0, "x", ((0, 4),)),))
    for access in (lambda: store.read(0, "x", 0, ((0, 4),)), lambda: store.extract(payload)):
        with pytest.raises(WiringError, match=r"HF703: column 'x' .* after 'role.make' had returned it"):
            access()


def test_a_buffer_of_numpy_that_is_written_again_is_reported() -> None:
    store, buffer = Store(), np.zeros(4)
    store.put(0, 0, StoredValue.of("role.make", {"x": torch.from_numpy(buffer)}))
    buffer[2] = 1
    with pytest.raises(WiringError, match=r"HF703: column 'x' .* after 'role.make' had returned it"):
        store.read(0, "x", 0, None)


def test_only_what_lies_in_memory_of_others_is_copied() -> None:
    shared, private, names = torch.zeros(4), torch.zeros(4), ["a"]
    jagged = Jagged(shared, torch.tensor([0, 4]))
    columns = writable(
        {"x": shared[1:3], "y": private, "name": names, "ids": jagged},
        memory_of([{ColumnSlice(0, 0, "x", None): shared}]),
    )
    columns["x"][:] = 1
    columns["ids"].values[:] = 1
    columns["name"].append("b")
    assert shared.tolist() == [0.0] * 4
    assert names == ["a"]
    assert columns["y"] is private
