"""Verified syncs: a copy that differs in any element is found, whatever the layouts; others are left alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfWarning, ResourceError, SyncError
from hfdsl.runtime.digests import DeviceSums, as_words, digests
from hfdsl.runtime.verification.comparison import compare
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.copied_names import CopiedNames
from hfdsl.runtime.weights.held_parts import HeldPart
from tests.runtime.dying_programs import FOLDER, death
from tests.runtime.verified_programs import (
    B,
    Closed,
    Dying,
    Engine,
    Relay,
    Renaming,
    Rows,
    Student,
    Trainer,
    learned,
    relayed,
    renewed,
    synced,
    taught,
    taught_again,
    turns,
)

SYNC = VerifiedSync("policy", "actor", "engine")
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    inner = st.sets(st.integers(1, size - 1), max_size=3) if size > 1 else st.just(set[int]())
    return inner.map(lambda chosen: [0, *sorted(chosen), size])


@st.composite
def layouts(draw: st.DrawFn, weight: torch.Tensor) -> list[list[tuple[str, HeldPart]]]:
    """What ranks hold of a weight: a grid of parts, some of which several ranks hold."""
    edges = [draw(cuts(size)) for size in weight.shape]
    boxes: list[tuple[tuple[int, int], ...]] = [()]
    for dim in edges:
        boxes = [(*box, pair) for box in boxes for pair in pairwise(dim)]
    extra = draw(st.lists(st.sampled_from(boxes), max_size=3))
    ranks = draw(st.permutations([*boxes, *extra]))
    return [
        [("x", HeldPart(weight[tuple(slice(*pair) for pair in box)], tuple(start for start, _ in box)))]
        for box in ranks
    ]


@st.composite
def weights(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 6), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    return (torch.randn(shape, generator=generator) * 50).to(draw(st.sampled_from(DTYPES)))


def of(ranks: list[list[tuple[str, HeldPart]]]) -> list[Any]:
    return [digests(pieces) for pieces in ranks]


@given(st.data())
def test_layouts_of_one_weight_agree(data: st.DataObject) -> None:
    weight = data.draw(weights())
    assert compare(SYNC, of(data.draw(layouts(weight))), of(data.draw(layouts(weight.clone())))) is None


@given(st.data())
def test_a_part_that_differs_on_one_rank_is_found_there(data: st.DataObject) -> None:
    weight = data.draw(weights())
    source, target = of(data.draw(layouts(weight))), data.draw(layouts(weight))
    rank = data.draw(st.integers(0, len(target) - 1))
    (name, piece) = target[rank][0]
    changed = piece.tensor.clone().view(-1)
    index = data.draw(st.integers(0, len(changed) - 1))
    changed[index] = changed[index] + 1 if changed[index].abs() < 100 else 0
    target[rank] = [(name, HeldPart(changed.view(piece.tensor.shape), piece.offset))]
    with pytest.raises(SyncError, match="'engine' holds other values of 'x'") as error:
        compare(SYNC, source, of(target))
    assert error.value.code == "HF771"
    assert (error.value.role, error.value.parameter) == ("engine", "x")
    assert rank in error.value.ranks


def test_a_part_that_differs_is_named_with_its_rank_and_coordinates() -> None:
    """Of two boxes of a rank the one that differs, and how many other weights do."""
    halves = [torch.arange(4.0).view(2, 2), torch.arange(4.0, 8.0).view(2, 2)]
    source = [[("x", HeldPart(half, (2 * index, 0)))] for index, half in enumerate(halves)]
    source[0].append(("y", HeldPart(torch.ones(2))))
    wrong = [
        ("x", HeldPart(halves[0] + 1, (0, 0))),
        ("x", HeldPart(halves[1], (2, 0))),
        ("y", HeldPart(torch.zeros(2))),
    ]
    target = [[*source[0], *source[1]], wrong]
    meshes = {"engine": hf.Mesh(dp=2)}
    where = r"'x'\[0:2, 0:2\] of 'policy' on rank 1 \(pp=0 dp=1 tp=0\)"
    end = r"than 'actor' exported, in sync 3 of the run; 1 other weight differs, too$"
    with pytest.raises(SyncError, match=rf"'engine' holds other values of {where} {end}") as error:
        compare(SYNC, of(source), of(target), 3, meshes=meshes)
    assert (error.value.ranks, error.value.parameter, error.value.version) == ((1,), "x", 3)


@given(st.data())
def test_devices_add_up_to_the_same_numbers(data: st.DataObject) -> None:
    """What a GPU would compute, on the CPU: parts of unlike shapes, and several of one shape."""
    sums, expected = DeviceSums(), dict[int, int]()
    for index in range(data.draw(st.integers(1, 6))):
        part = data.draw(weights())
        offset = data.draw(st.lists(st.integers(0, 3), min_size=part.dim(), max_size=part.dim()))
        [digest] = digests([("x", HeldPart(part, tuple(offset)))])
        lanes = 8 // part.element_size()
        starts = (*offset[:-1], offset[-1] // lanes) if offset else (0,)
        words = as_words(part, offset)
        sums.add(index, words, words.shape, starts)
        expected[index] = digest.value
    assert {index: value % 2**64 for index, value in sums.digests().items()} == expected


@given(st.data())
def test_rows_in_another_order_are_found(data: st.DataObject) -> None:
    """As after a swapped interleave, or a shifted vocabulary."""
    rows, columns = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 5))
    weight = torch.randn(rows, columns)
    order = data.draw(st.permutations(range(rows)).filter(lambda order: order != list(range(rows))))
    with pytest.raises(SyncError, match="HF771"):
        compare(SYNC, of([[("x", HeldPart(weight))]]), of(data.draw(layouts(weight[order]))))


@given(st.data())
def test_a_flipped_bit_is_always_found(data: st.DataObject) -> None:
    """A flipped bit always: the factors of a place add up to an odd number."""
    weight = data.draw(weights())
    [expected] = digests([("x", HeldPart(weight))])
    size = weight.element_size()
    bits = weight.clone().reshape(-1).view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    index = data.draw(st.integers(0, len(bits) - 1))
    flipped = bits.clone()
    flipped[index] ^= -(2 ** (8 * size - 1)) if data.draw(st.booleans()) else 2 ** data.draw(st.integers(0, 6))
    [digest] = digests([("x", HeldPart(flipped.view(weight.dtype).view(weight.shape)))])
    assert digest.value != expected.value


@given(st.data(), st.integers(1, 9), st.integers(1, 9))
def test_parts_anywhere_in_memory_add_up(data: st.DataObject, rows: int, columns: int) -> None:
    """Also those that begin within eight bytes, or are strided."""
    dtype, gap = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 5))
    memory = (torch.arange((rows + 1) * (columns + gap) + 5) * 37 % 101).to(dtype)
    weight = memory[gap : gap + rows * (columns + gap)].view(rows, columns + gap)[:, :columns]
    [dense] = digests([("x", HeldPart(weight.clone(memory_format=torch.contiguous_format)))])
    assert digests([("x", HeldPart(weight))]) == (dense,)
    edge = data.draw(st.integers(0, columns))
    parts = [("x", HeldPart(weight[:, :edge])), ("x", HeldPart(weight[:, edge:], (0, edge)))]
    assert sum(part.value for part in digests(parts)) % 2**64 == dense.value


def test_exports_are_compared_in_the_dtype_of_the_copy() -> None:
    weight = torch.randn(4, 4)
    copy = [digests([("x", HeldPart(weight.bfloat16()))])]
    compare(SYNC, [digests([("x", HeldPart(weight))], {"x": "bfloat16"})], copy)
    with pytest.raises(SyncError, match="HF771"):
        compare(SYNC, [digests([("x", HeldPart(weight + 1))], {"x": "bfloat16"})], copy)


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ({"x": (2,), "y": (2,)}, {"x": (2,)}, "'actor' holds 'y' of 'policy', and 'engine' does not"),
        ({"x": (2,)}, {"x": (2,), "y": (2,)}, "'engine' holds 'y' of 'policy', and 'actor' does not"),
        ({"x": (2, 2)}, {"x": (2, 4)}, r"'x' of 'policy' has the shape \(2, 4\) in 'engine' and \(2, 2\) in 'actor'"),
    ],
)
def test_other_names_and_shapes_are_found(source: Any, target: Any, says: str) -> None:
    exported, loaded = (
        of([[(name, HeldPart(torch.zeros(shape))) for name, shape in side.items()]]) for side in (source, target)
    )
    stated = CopiedNames(frozenset({"x", "y"}), by_target=True)
    with pytest.raises(SyncError, match=says):
        compare(SYNC, exported, loaded, names=stated)


def test_a_weight_without_elements_is_not_missing() -> None:
    """No sync sends it, so an engine has it or not; FSDP's last ranks may have an empty shard."""
    empty, shards = HeldPart(torch.zeros(0, 2)), torch.arange(4.0).view(2, 2)
    held = of([[("x", HeldPart(shards)), ("none", empty)], [("x", HeldPart(torch.zeros(0, 2), (2, 0)))]])
    whole = of([[("x", HeldPart(shards))]])
    stated = CopiedNames(frozenset({"x", "none"}), by_target=True)
    for sides in ((held, whole), (whole, held)):
        assert compare(SYNC, *sides, names=stated) is None


@pytest.mark.parametrize("apart", [(slice(0, 3), slice(1, 4)), (slice(0, 1), slice(3, 4))], ids=["overlap", "gap"])
@pytest.mark.parametrize("is_export", [False, True])
def test_parts_that_do_not_add_up_are_not_compared(apart: tuple[slice, slice], is_export: bool) -> None:
    """No differing bit of them would be found; other weights are compared."""
    weight, other = torch.arange(8.0).view(4, 2), torch.arange(6.0)
    whole = of([[("x", HeldPart(weight + 1)), ("y", HeldPart(other))]])
    parts = [[("x", HeldPart(weight[rows], (rows.start, 0))), ("y", HeldPart(other))] for rows in apart]
    sides = (of(parts), whole) if is_export else (whole, of(parts))
    role = SYNC.source if is_export else SYNC.target
    says = f"the parts of 'x' on the ranks of '{role}' overlap or have gaps, so their digests do not add up"
    assert compare(SYNC, *sides) == says
    wrong = of([[("x", HeldPart(weight)), ("y", HeldPart(other + 1))]])
    with pytest.raises(SyncError, match="values of 'y'"):
        compare(SYNC, *((sides[0], wrong) if is_export else (wrong, sides[1])))


# -- runs


def running(
    plan: hf.Dataflow[Any, Any], spoils: int = -1, backend: Any = "local", engine: Any = Engine, **launch: Any
) -> Any:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(actor=hf.place(Trainer, pool=pools[0]), engine=hf.place(engine, spoils, pool=pools[1]))
    return plan.compile(deployment, {B: 4}).launch(backend, **launch)


ROWS = Rows(x=torch.zeros(4))


def test_a_copy_is_compared_with_the_export_that_it_is_of() -> None:
    """Not with weights that have learned since."""
    with running(learned, spoils=3) as run:
        assert run.verify("policy").skipped == {SYNC: "'engine' has not been synced"}
        run.step(ROWS)
        (reason,) = run.verify("policy").skipped.values()
        assert "trained after the sync" in reason
        with run.verifying("policy"):
            run.step(ROWS)
        assert run.verify("policy").compared == (SYNC,)  # what was digested is still that of the copy
        with pytest.raises(SyncError, match=r"'engine' holds other values of 'weight' of 'policy' on rank 1") as error:  # noqa: SIM117  # the block raises as it ends
            with run.verifying():
                run.step(ROWS)
        assert (error.value.ranks, error.value.version) == ((1,), 3)
        assert error.value.message.endswith("than 'actor' exported, in sync 3 of the run")


def test_a_source_that_has_not_learned_is_compared_at_once() -> None:
    with running(synced, spoils=2) as run:
        run.step()
        assert run.verify("policy").compared == (SYNC,)
        run.step()
        with pytest.raises(SyncError, match="on rank 1"):
            run.verify("policy")
        with pytest.raises(
            ResourceError, match=r"HF772: no hf.sync of 'synced' sends the state 'value'; .* sends: 'policy'"
        ):
            run.verify("value")


def test_a_copy_is_of_the_role_that_it_was_loaded_from_last() -> None:
    pools = [hf.ResourcePool([size], use_gpu=False) for size in (2, 1, 2)]
    deployment = hf.Deployment(
        actor=hf.place(Trainer, pool=pools[0]),
        opponent=hf.place(Trainer, pool=pools[1]),
        engine=hf.place(Engine, pool=pools[2]),
    )
    opponent = VerifiedSync("policy", "opponent", "engine")
    with turns.compile(deployment, {B: 4}).launch() as run:
        for _ in range(2):  # from the second step on, the actor has other weights than the opponent
            with run.verifying():
                run.step(ROWS)
            verified = run.verify("policy")
            assert verified.compared == (opponent,)  # whose export was digested
            assert verified.skipped == {SYNC: "'engine' has loaded the weights of 'opponent' since"}


def test_a_copy_that_learns_is_another_one() -> None:
    """It would be blamed for values that its own role has written."""
    reason = "'engine' has changed its copy since it was loaded"
    with running(taught, engine=Student) as run:
        run.step(ROWS)
        assert run.verify("policy").skipped == {SYNC: reason}
        with pytest.warns(HfWarning, match=f"HF772: the copy of 'policy' in 'engine' is not verified: {reason}"):  # noqa: SIM117  # the block warns as it ends
            with run.verifying():
                run.step(ROWS)
    with running(taught_again, engine=Student) as run:
        run.step(ROWS)
        assert run.verify("policy").compared == (SYNC,)


def test_a_role_that_has_loaded_other_weights_is_ahead_of_its_copies() -> None:
    pools = [hf.ResourcePool([2], use_gpu=False) for _ in range(3)]
    roles = (("actor", Trainer), ("relay", Relay), ("engine", Engine))
    deployment = hf.Deployment(
        **{name: hf.place(role, pool=pool) for (name, role), pool in zip(roles, pools, strict=True)}
    )
    first, second = VerifiedSync("policy", "actor", "relay"), VerifiedSync("policy", "relay", "engine")
    with relayed.compile(deployment).launch() as run:
        run.step()
        assert run.verify("policy").compared == (first, second)
        run.also(renewed.compile(deployment, {B: 4})).step(ROWS)
        verified = run.verify("policy")
        assert verified.compared == (first,)
        assert "or has loaded weights" in verified.skipped[second]


def test_other_names_in_a_state_are_no_mistake() -> None:
    with running(synced, engine=Renaming) as run:
        run.step()
        (reason,) = run.verify("policy").skipped.values()
        assert reason.startswith("the state() of 'engine' has other names than 'actor' exports")


def test_a_method_that_gives_no_weights_is_to_blame() -> None:
    with running(synced, engine=Closed) as run:
        run.step()
        (reason,) = run.verify("policy").skipped.values()
        assert reason == "'engine' holds something other than a dict of tensors: see its held_weights('policy')"


def test_a_block_warns_of_copies_that_it_could_not_compare() -> None:
    """Whose skipped syncs nobody gets; copies that the block did not sync are none of its business."""
    says = "HF772: the copy of 'policy' in 'engine' is not verified: the state\\(\\) of 'engine' has other names"
    with running(synced, engine=Renaming) as run, pytest.warns(HfWarning, match=says), run.verifying():
        run.step()
    with running(learned) as run, run.verifying():
        pass
    with running(learned) as run:
        run.step(ROWS)
        with run.verifying():
            pass


@pytest.mark.nightly
def test_processes_that_are_lost_are_no_mistake(ray_cluster: Any, tmp_path: Path) -> None:
    death(tmp_path, "engine.sample", 1, 1)
    options: dict[str, Any] = {"retries": hf.Retries(), "worker_env": {FOLDER: str(tmp_path)}}
    with running(learned, spoils=4, backend="ray", engine=Dying, **options) as run, run.verifying():
        run.step(ROWS)
        with pytest.warns(HfWarning, match="HF840"):
            run.step(ROWS)
        assert run.verify("policy").compared == (SYNC,)


@pytest.mark.nightly
def test_the_same_between_processes(ray_cluster: Any) -> None:
    with running(learned, spoils=2, backend="ray") as run:
        with run.verifying():
            run.step(ROWS)
        with pytest.raises(SyncError, match="on rank 1"), run.verifying():
            run.step(ROWS)
