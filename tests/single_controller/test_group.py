"""Groups: calls by name, registered methods, futures, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfdsl.errors import DefinitionError, ProtocolError, ResourceError, RoleError, SizeError, WiringError
from hfdsl.single_controller import Mesh, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from tests import fork_server
from tests.single_controller import roles

# -- calls by name -----------------------------------------------------------------------------------------------------


def test_one_result_a_rank(accumulators: RayWorkerGroup, ray_cluster: Any) -> None:
    assert accumulators.execute_all_sync("add", x=[1, 1, 1, 1]) == [1, 2, 3, 4]
    assert ray_cluster.get(accumulators.execute_all_async("add", [0, 1, 2, 3])) == [1, 3, 5, 7]
    assert accumulators.execute_all_sync("add", 1) == [2, 4, 6, 8]
    assert accumulators.execute_rank_zero_sync("add", x=1) == 3
    assert ray_cluster.get(accumulators.execute_rank_zero_async("add", 1)) == 4
    assert accumulators.execute_rank_zero_sync("add", -4) == 0
    assert ray_cluster.get(accumulators.workers[3].add.remote(1)) == 9  # handles are Ray's own
    assert (accumulators.world_size, len(accumulators.workers)) == (4, 4)
    assert accumulators.worker_names == [f"accAccumulator_0:{rank}" for rank in range(4)]


def test_a_worker_knows_its_rank(accumulators: RayWorkerGroup) -> None:
    envs = accumulators.execute_all_sync("env")
    assert [env["RANK"] for env in envs] == ["0", "1", "2", "3"]
    for env in envs:
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["LOCAL_RANK"]) == ("4", "4", env["RANK"])
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (accumulators.master_address, accumulators.master_port)
    assert accumulators.execute_all_sync("about")[2] == (2, 4, 2, 4, "pp=0 dp=2 tp=0")
    assert accumulators.execute_all_sync("get_master_addr_port")[1][1] == accumulators.master_port


def test_a_worker_imports_no_more_than_its_role(ray_cluster: Any) -> None:
    with (
        RayResourcePool([1], use_gpu=False) as pool,
        RayWorkerGroup(pool, make(roles.Accumulator), worker_env={fork_server.FRESH: "1"}) as group,
    ):
        assert group.execute_rank_zero_sync("imported", "torch") is False


def test_lists_are_never_guessed(accumulators: RayWorkerGroup) -> None:
    with pytest.raises(ProtocolError, match=r"HF411: argument 'x' of Accumulator.add is a list of 3, .* 4 ranks"):
        accumulators.execute_all_sync("add", x=[1, 1, 1])
    with pytest.raises(ProtocolError, match=r"HF411: argument 'x' of Accumulator.add is a list and argument 'more'"):
        accumulators.execute_all_sync("add", x=[1, 1, 1, 1], more=2)


def test_mistakes_in_a_call_by_name(accumulators: RayWorkerGroup) -> None:
    with pytest.raises(WiringError, match=r"HF202: group Accumulator has no method 'ad'; did you mean 'add'"):
        accumulators.execute_all_sync("ad", 1)
    with pytest.raises(WiringError, match=r"HF203: Accumulator.add\(x: 'int', more.*missing a required argument: 'x'"):
        accumulators.execute_all_sync("add")
    with pytest.raises(WiringError, match=r"HF802: an argument of Accumulator.add cannot be sent"):
        accumulators.execute_all_sync("add", (row for row in [1]))
    with pytest.raises(AttributeError, match=r"HF202"):
        accumulators.add(1)  # not registered
    assert not hasattr(accumulators, "add")


def test_a_function_on_rank_zero(accumulators: RayWorkerGroup) -> None:
    assert accumulators.execute_func_rank_zero(lambda a, b: a - b, 5, b=3) == 2
    with pytest.raises(RoleError, match=r"ZeroDivisionError on rank 0 of 4"):
        accumulators.execute_func_rank_zero(lambda: 1 / 0)


# -- registered methods ------------------------------------------------------------------------------------------------


def test_the_protocols_of_lists(methods: RayWorkerGroup, ray_cluster: Any) -> None:
    assert methods.execute_all_sync("foo", y=3) == [5, 5, 5, 5]
    assert methods.one_to_all(x=1, y=2) == [5, 5, 5, 5]
    assert methods.length([7, 8, 9, 10]) == [4, 4, 4, 4]  # a list goes whole, whatever its length
    assert methods.all_to_all(x=[1, 2, 3, 4], y=[5, 6, 7, 8]) == [8, 10, 12, 14]
    assert methods.rank_zero(x=1, y=2) == 5
    assert ray_cluster.get(methods.later(10)) == [10, 11, 12, 13]
    assert ray_cluster.get(methods.rank_zero_later("as it is")) == "as it is"
    assert methods.rank_zero_later([1, 2, 3, 4]) is not None


def test_functions_of_the_user(methods: RayWorkerGroup) -> None:
    x, y = [1, 2], [5, 6]
    assert methods.custom(x=x, y=y) == [8, 10, 8, 10]
    assert methods.custom(x, y) == [8, 10, 8, 10]
    assert (x, y) == ([1, 2], [5, 6])  # the function grows its lists; the caller's own stay
    with pytest.raises(
        ProtocolError, match=r"HF407: the dispatch_fn of Methods.no_pair gives \(args, kwargs\), got int"
    ):
        methods.no_pair(3)
    with pytest.raises(ProtocolError, match=r"HF407: the dispatch_fn of Methods.short gave 2 entries for argument 'x'"):
        methods.short([1, 2])
    raised = r"HF407: the dispatch_fn of Methods.custom, two_to_all, raised AssertionError"
    with pytest.raises(ProtocolError, match=raised) as error:
        methods.custom([1, 2, 3], [5, 6])
    assert isinstance(error.value.__cause__, AssertionError)
    with pytest.raises(WiringError, match=r"HF202: Methods.custom\(x: .* has no argument 'z'; did you mean 'x'\?"):
        methods.execute_all_sync("custom", z=1, y=2)


def test_rows_are_split_and_joined(methods: RayWorkerGroup) -> None:
    assert methods.double(list(range(8))) == [row * 2 for row in range(8)]
    assert methods.last_seen() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    joined = methods.double(rows=np.arange(4.0))
    assert isinstance(joined, np.ndarray)
    assert joined.tolist() == [0, 2, 4, 6]
    assert methods.group_sums(list(range(16)))[::4] == [6, 22, 38, 54]
    assert methods.no_result([1, 2, 3, 4]) is None


def test_tensors_travel_with_their_own_rows_only(methods: RayWorkerGroup) -> None:
    torch = pytest.importorskip("torch")
    assert methods.double(torch.arange(8)).tolist() == [row * 2 for row in range(8)]
    assert methods.execute_all_sync("last_seen")[1].untyped_storage().nbytes() == 2 * 8


def test_padding(methods: RayWorkerGroup) -> None:
    rows = [1, 2, 3, 4, 5]
    assert methods.padded(rows) == rows
    assert len(rows) == 5
    assert methods.padded([9], other=np.array([1])) == [9]
    assert methods.double_later(rows).get() == [2, 4, 6, 8, 10]
    record = roles.Record([1, 2, 3])
    assert methods.padded(record).rows == record.rows == [1, 2, 3]


def test_rows_are_balanced_by_their_weights(methods: RayWorkerGroup) -> None:
    # Two rows a rank: 9 with 1, 8 with 2, and so on; without, 17 are on the first rank.
    lengths, names = [9, 8, 7, 6, 1, 2, 3, 4], list("abcdefgh")
    balanced = methods.balanced_later(lengths, names)
    assert balanced.get() == [f"{name} of 10" for name in names for _ in range(2)]
    assert methods.padded(balanced) == balanced.get(), "handed on before it is here, it is in its order too"
    later = methods.balanced_later(methods.double_later(lengths), names).get()
    assert [text[0] for text in later] == [name for name in names for _ in range(2)]
    assert {text[-2:] for text in later} == {"34", "26", " 6", "14"}, "a future's rows are not here to be weighed"


def test_futures_are_arguments(methods: RayWorkerGroup, ray_cluster: Any) -> None:
    future = methods.double_later([1, 2, 3, 4, 5])  # padded to 8
    assert methods.padded(future) == [2, 4, 6, 8, 10]  # unpadded, padded again, unpadded
    assert methods.double_later(future).get() == [4, 8, 12, 16, 20]
    assert methods.length(future) == [5, 5, 5, 5]
    assert methods.rank_zero_later(future) is not None
    assert ray_cluster.get(methods.rank_zero_later(future)) == [2, 4, 6, 8, 10]
    assert methods.execute_all_sync("length", future) == [5, 5, 5, 5]
    assert methods.double(ray_cluster.put([1, 2, 3, 4])) == [2, 4, 6, 8]
    assert methods.pair([1, 2, 3, 4], ray_cluster.put([5, 6, 7, 8])) == [(1, 5), (2, 6), (3, 7), (4, 8)]
    assert methods.all_to_all([ray_cluster.put(1)] * 4, [1, 2, 3, 4]) == [4, 5, 6, 7]


def test_mistakes_that_only_the_worker_can_see_are_typed_too(methods: RayWorkerGroup, ray_cluster: Any) -> None:
    future = methods.double_later([1, 2, 3, 4, 5])
    with pytest.raises(SizeError, match=r"HF310: argument 'rows' of Methods.double has 5 rows.*4 chunks"):
        methods.double(future)
    with pytest.raises(ProtocolError, match=r"HF420.*argument 'b' of Methods.pair has 5, what was given at once has 4"):
        methods.pair([1, 2, 3, 4], future)
    with pytest.raises(ProtocolError, match=r"HF413: argument 'rows' of Methods.double is a str"):
        methods.double(ray_cluster.put("abcd"))


def test_mistakes_in_a_call(methods: RayWorkerGroup) -> None:
    with pytest.raises(SizeError, match=r"HF310: argument 'rows' of Methods.double has 6 rows.*give 4 or 8"):
        methods.double([1] * 6)
    with pytest.raises(SizeError, match=r"HF313"):
        methods.group_sums([1] * 8)
    with pytest.raises(ProtocolError, match=r"HF413: argument 'rows' of Methods.double is a tuple"):
        methods.double((1, 2, 3, 4))
    with pytest.raises(ProtocolError, match=r"HF420"):
        methods.pair([1] * 4, [1] * 8)
    with pytest.raises(ProtocolError, match=r"HF411: argument 'y' of Methods.all_to_all is int"):
        methods.all_to_all([1, 2, 3, 4], 5)
    with pytest.raises(ProtocolError, match=r"HF413: the output of Methods.a_dict cannot be joined"):
        methods.a_dict([1, 2, 3, 4])
    with pytest.raises(WiringError, match=r"HF202: Methods.double.* has no argument 'row'; did you mean 'rows'"):
        methods.double(row=[1])
    with pytest.raises(WiringError, match=r"HF202: .* has no registered method 'doubel'; did you mean 'double"):
        methods.doubel([1])


def test_a_parent_makes_and_calls_a_child(methods: RayWorkerGroup) -> None:
    assert methods.make_child(on=3) == [0, 0, 0, 30]


# -- meshes ------------------------------------------------------------------------------------------------------------


def test_a_mesh_in_an_unusual_order(grid: RayWorkerGroup) -> None:
    assert grid.three_d([1, 2]) == [(1, 0), (2, 0)]
    assert grid.micro([1, 2, 3, 4]) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert grid.stages(7) == [(7, 0), (7, 1)]
    assert grid.over_tp([1, 2, 3, 4]) == [1, 2, 3, 4]


def test_a_failure_outside_of_the_collected_ranks_is_reported(grid: RayWorkerGroup) -> None:
    with pytest.raises(RoleError, match=r"HF806: Grid.fail_quietly raised ValueError on rank [23] of 4: not"):
        grid.fail_quietly([1]).get()


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failing_body_is_reported_once_with_its_own_lines(methods: RayWorkerGroup) -> None:
    with pytest.raises(RoleError) as caught:
        methods.fail_on([1, 2, 3, 4])
    text = str(caught.value)
    assert isinstance(caught.value, KeyError)
    assert caught.value.code == "HF806"
    assert "Methods.fail_on raised KeyError on rank 2 of 4: 'three'" in text
    assert 'raise KeyError("three")' in text
    assert "roles.py" in text
    assert "host.py" not in text
    assert caught.value.__cause__ is None
    assert text.count("Traceback") == 1


def test_a_failure_does_not_wait_for_the_other_ranks(accumulators: RayWorkerGroup, tmp_path: Path) -> None:
    with pytest.raises(RoleError, match=r"rank 3 of 4: no good 3"):
        accumulators.execute_all_sync("fail", 3, str(tmp_path))
    assert not list(tmp_path.glob("ended*"))
    (tmp_path / "released").touch()


def test_a_reference_raises_a_role_error_too(accumulators: RayWorkerGroup, ray_cluster: Any) -> None:
    refs = accumulators.execute_all_async("fail", 1)
    with pytest.raises(RoleError, match=r"no good 1"):
        ray_cluster.get(refs[1])
    with pytest.raises(RoleError, match=r"no good 1"):
        accumulators.execute_rank_zero_sync(
            "add", refs[1]
        )  # the call never runs; the first failure is the one reported
    with pytest.raises(RoleError, match=r"(?s)HF806: a worker failed outside of a role's method.*lock"):
        accumulators.execute_rank_zero_sync("give_lock")


# -- creation ----------------------------------------------------------------------------------------------------------


def make(cls: type, *args: Any, **kwargs: Any) -> RayClassWithInitArgs:
    return RayClassWithInitArgs(cls, *args, **kwargs)


def test_decidable_mistakes_are_refused_before_anything_starts() -> None:
    unplaced = RayResourcePool([4], use_gpu=False)
    with pytest.raises(ResourceError, match=r"HF501.*8 ranks.*has 4"):
        RayWorkerGroup(unplaced, make(roles.Grid), Mesh(dp=4, tp=2))
    with pytest.raises(SizeError, match=r"HF313: NeedsAll.whiten needs all rows"):
        RayWorkerGroup(unplaced, make(roles.NeedsAll))
    with pytest.raises(DefinitionError, match=r"HF111: Takes.shutdown has a name that a worker group has itself"):
        RayWorkerGroup(unplaced, make(roles.Takes))
    with pytest.raises(ResourceError, match=r"HF520: worker_env sets RANK, which the group sets"):
        RayWorkerGroup(unplaced, make(roles.Accumulator), worker_env={"RANK": "1", "X": "y"})
    with pytest.raises(ResourceError, match=r"HF520: worker_env holds strings; X is 3"):
        RayWorkerGroup(unplaced, make(roles.Accumulator), worker_env={"X": 3})  # type: ignore[dict-item]
    with pytest.raises(ResourceError, match=r"HF507.*detached"):
        RayWorkerGroup(unplaced, make(roles.Accumulator), detached=True)
    with pytest.raises(DefinitionError, match=r"HF118"):
        RayWorkerGroup(unplaced, roles.Accumulator)  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match=r"HF507"):
        RayWorkerGroup([4], make(roles.Accumulator))  # type: ignore[arg-type]
    with pytest.raises(WiringError, match=r"HF203: Picky\(bad: 'int'\).*missing a required argument: 'bad'"):
        make(roles.Picky)
    with pytest.raises(
        WiringError, match=r"HF203: Grid\(\) is called with the wrong arguments: too many positional arguments"
    ):
        make(roles.Grid, 3)
    with pytest.raises(DefinitionError, match=r"HF118"):
        make(3)  # type: ignore[arg-type]
    assert unplaced.slots[0].node.group is None


def test_a_failing_constructor_ends_the_group(pair: RayResourcePool, ray_cluster: Any) -> None:
    before = len(pair.slots[0].users)
    with pytest.raises(RoleError, match=r"Picky.__init__ raised RuntimeError on rank 1 of 2: cannot start 1"):
        RayWorkerGroup(pair, make(roles.Picky, bad=1), name_prefix="picky")
    assert len(pair.slots[0].users) == before
    with pytest.raises(ValueError, match=r"Failed to look up"):
        ray_cluster.get_actor("pickyPicky_0:0")


def test_a_name_that_is_taken(pool: RayResourcePool, accumulators: RayWorkerGroup) -> None:
    with pytest.raises(ResourceError, match=r"HF521: worker 'accAccumulator_0:0' runs already"):
        RayWorkerGroup(pool, make(roles.Accumulator), name_prefix="acc")


def test_extra_environment_and_shutdown(ray_cluster: Any) -> None:
    with RayResourcePool([1], use_gpu=False, max_colocate_count=1) as pool:
        group = RayWorkerGroup(pool, make(roles.Accumulator, 5), worker_env={"EXTRA": "more"})
        assert group.execute_rank_zero_sync("env")["EXTRA"] == "more"
        with pytest.raises(ResourceError, match=r"HF504: group Accumulator does not fit.*max_colocate_count is 1"):
            RayWorkerGroup(pool, make(roles.Accumulator))
        group.shutdown()
        group.shutdown()
        with pytest.raises(ResourceError, match=r"HF522: group Accumulator was shut down"):
            group.execute_all_sync("add", 1)
        with RayWorkerGroup(pool, make(roles.Asynchronous)) as group:
            assert group.together(3) == [3]
            assert group.plain([1, 2]) == [1, 2]
            with pytest.raises(RoleError, match=r"Asynchronous.fail raised ValueError on rank 0 of 1: in a coroutine"):
                group.fail()
        with RayWorkerGroup(pool, make(roles.Accumulator)) as group, pytest.raises(RoleError, match=r"HF806.*process"):
            group.execute_all_sync("die")
