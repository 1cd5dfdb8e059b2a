"""What comes back from a call: all that a generator yields, and rows that add up."""

from __future__ import annotations

from typing import Any

import pytest

from hfdsl.errors import SizeError
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from tests.single_controller import roles


def test_a_generator_gives_the_list_of_all_its_items(pair: RayResourcePool, ray_cluster: Any) -> None:
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.Yielding)) as group:
        assert group.numbers(3) == [[0, 1, 2]] * 2
        assert group.numbers(0) == [[], []]
        assert group.doubled([1, 2, 3, 4]) == [2, 4, 6, 8]
        assert group.returned(3) == [[0, 1, 2]] * 2
        assert group.execute_all_sync("numbers", [1, 2]) == [[0], [0, 1]]
        assert group.execute_rank_zero_sync("numbers", 2) == [0, 1]
        assert group.execute_func_rank_zero(lambda: (number for number in range(2))) == [0, 1]
        assert ray_cluster.get(group.execute_rank_zero_async("numbers", 2)) == [0, 1]
        with pytest.raises(IndexError, match=r"HF806: Yielding.fail_in_the_middle raised IndexError"):
            group.fail_in_the_middle()
    with RayWorkerGroup(pair, RayClassWithInitArgs(roles.YieldingLater)) as later:
        assert later.numbers(3) == [[0, 1, 2]] * 2
        assert later.plain(2) == [[0, 1]] * 2


def test_rows_that_do_not_add_up_are_an_error(rows: RayWorkerGroup) -> None:
    lost = r"HF930: .* of Rows.lose_one has 3 rows for 4, .* received 2, and .* \(rank 0: 2; rank 1: 1\). Return"
    with pytest.raises(SizeError, match=lost):
        rows.lose_one([1, 2, 3, 4])
    everywhere = r"HF930: .* has 2 rows for 4, .* received 2, and returned \(ranks 0-1: 1\). Return"
    with pytest.raises(SizeError, match=everywhere):
        rows.lose_everywhere([1, 2, 3, 4])
    with pytest.raises(SizeError, match=r"HF930: the output of Rows.uneven has 6 rows for 4"):
        rows.uneven([1, 2, 3, 4])
    with pytest.raises(SizeError, match=r"HF930: .* has 2 rows for 8, .* for each group of 2"):
        rows.best_of_all(list(range(8)))
    with pytest.raises(SizeError, match=r"HF930: the output of Rows.shorter has 3 rows for 4"):
        rows.shorter(roles.Record([1, 2, 3, 4]))


def test_rows_of_a_future_are_counted_too(rows: RayWorkerGroup) -> None:
    future = rows.later([1, 2, 3])
    assert future.get() == [1, 2, 3]
    with pytest.raises(SizeError, match=r"HF930: the output of Rows.lose_one has 3 rows for 4"):
        rows.lose_one(rows.later([1, 2, 3, 4]))
    assert rows.filtered(rows.later([1, 2, 3, 4])) == [[1], [3]], "and a list has no counted rows"


def test_rows_that_can_be_attributed_are_none(rows: RayWorkerGroup) -> None:
    assert rows.twice([1, 2, 3, 4]) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert rows.best_of_two([1, 2, 3, 4, 5, 6, 7, 8]) == [2, 4, 6, 8]
    assert rows.filtered([1, 2, 3, 4]) == [[1], [3]]
    assert rows.container([]) == []


def test_a_container_may_have_no_rows_at_all(rows: RayWorkerGroup) -> None:
    notes = roles.Notes({"loss": []}, [1, 2, 3, 4])
    assert rows.metrics(notes).notes == {"loss": [0.0, 1.0]}
    assert rows.container(notes).rows == [1, 2, 3, 4]
    assert rows.container_later(notes).get().rows == [1, 2, 3, 4]


def test_jagged_tensors_are_split_and_joined(rows: RayWorkerGroup) -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.arange(3.0), torch.arange(5.0), torch.arange(2.0), torch.arange(1.0)]
    for layout in (torch.jagged, torch.strided):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        for value in (rows.container(nested), rows.container_later(rows.container_later(nested)).get()):
            assert value.is_nested
            assert value.layout is layout
            assert [row.tolist() for row in value.unbind()] == [row.tolist() for row in parts]
