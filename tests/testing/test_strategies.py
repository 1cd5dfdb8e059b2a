"""Strategies: what they make is right by construction, covers what it should, and prints as code that makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

import hfdsl as hf
from hfdsl.errors import SizeError
from hfdsl.protocols.placement import faults
from hfdsl.protocols.split import join, split
from hfdsl.testing import check_laws, strategies
from hfdsl.testing.code import as_code
from hfdsl.testing.compare import first_difference
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import MetricSpec
from hfdsl.types.dims import evaluate
from hfdsl.types.dtypes import DTYPES

few = settings(max_examples=25)


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class G(hf.Dim): ...


class Everything(hf.Batch):
    ids: hf.i64[B, hf.Add[P, R]]
    mask: hf.bool_[B, hf.Mul[R, Literal[2]]]
    half: hf.bf16[B, hf.Div[P, Literal[3]]]
    groups: hf.u8[B, hf.Div[B, G]]
    tokens: hf.f32[B, hf.Ragged[R]]
    name: hf.Obj[str, B]
    task: hf.Obj[dict[str, Any], B]
    value: hf.f16[B] | None = None
    loss: hf.Metric[float, Literal["mean"]]


class Groups(hf.Batch):
    x: hf.i32[hf.Mul[B, Literal[4]], R]


def equal(value: Any, other: Any) -> bool:
    """The same values and strides, NaN being NaN."""
    if isinstance(value, torch.Tensor):
        same = (
            value.dtype is other.dtype and value.shape == other.shape and value.is_contiguous() == other.is_contiguous()
        )
        return same and torch.equal(value.double().nan_to_num(nan=7.25), other.double().nan_to_num(nan=7.25))
    if isinstance(value, Batch):
        return all(
            equal(a, b) for a, b in zip(value.__hf_columns__.values(), other.__hf_columns__.values(), strict=True)
        )
    if hasattr(value, "offsets"):
        return torch.equal(value.offsets, other.offsets) and equal(value.values.contiguous(), other.values.contiguous())
    return bool(value == other)


# -- records


@few
@given(strategies.batches(Everything))
def test_columns_have_the_lengths_that_their_dims_say(batch: Everything) -> None:
    rows, prompt, response = len(batch), batch.half.tensor.shape[1] * 3, batch.mask.tensor.shape[1] // 2
    assert batch.ids.tensor.shape == (rows, prompt + response)
    assert rows % batch.groups.tensor.shape[1] == 0
    assert all(len(row) <= response for row in batch.tokens.rows)


@few
@given(strategies.batches(Everything, b=6, sizes={R: 1}), strategies.batches(Groups, b=st.sampled_from([4, 8])))
def test_given_sizes_are_kept(batch: Everything, groups: Groups) -> None:
    assert len(batch) == 6
    assert batch.mask.tensor.shape[1] == 2
    assert len(groups) in (4, 8)


@few
@given(strategies.batches(strategies.records(), b=st.sampled_from([0, 2, 4])))
def test_batches_of_any_record_are_split_and_joined_again(batch: Batch) -> None:
    halves = split(batch, 2)
    assert [len(half) for half in halves] == [len(batch) // 2] * 2
    metrics = [name for name, spec in schema(type(batch)).fields.items() if isinstance(spec, MetricSpec)]
    if not metrics:
        assert first_difference(join(halves), batch) is None


def test_records_of_every_kind_are_made() -> None:
    seen = set[str]()

    @settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategies.records())
    def look(record: type[Batch]) -> None:
        for spec in schema(record).fields.values():
            seen.add(type(spec).__name__)
            seen.update(name for name in ("ragged", "optional") if getattr(spec, name, False))
            seen.add(getattr(getattr(spec, "dtype", None), "name", ""))

    look()
    kinds = {"ColumnSpec", "ObjSpec", "MetricSpec", "ragged", "optional", ""}
    assert seen == kinds | {dtype.name for dtype in DTYPES}


def test_a_number_of_rows_that_the_row_dim_never_is_is_refused() -> None:
    with pytest.raises(SizeError, match=r"HF310: 'Groups' has B\*4 rows, which 6 is not for any size of its dims"):
        find(strategies.batches(Groups, b=6), lambda batch: True)


class Rare(hf.Batch):
    value: hf.f16[B, P] | None
    tokens: hf.i64[B, hf.Ragged[P]]
    name: hf.Obj[str, B]
    task: hf.Obj[dict[str, Any], B]


SEEN: dict[str, Any] = {
    "absent": lambda batch: batch.value is None,
    "nan": lambda batch: batch.value is not None and batch.value.tensor.isnan().any(),
    "infinite": lambda batch: batch.value is not None and batch.value.tensor.isinf().any(),
    "strided": lambda batch: batch.value is not None and not batch.value.tensor.is_contiguous(),
    "large": lambda batch: any((row > 2**40).any() for row in batch.tokens.rows),
    "empty row": lambda batch: any(len(row) == 0 for row in batch.tokens.rows),
    "ragged": lambda batch: len(set(map(len, batch.tokens.rows))) > 1,
    "letters": lambda batch: "é" in "".join(batch.name.objects),
    "objects": lambda batch: any(task for task in batch.task.objects),
}


def test_strategies_draw_rare_cases() -> None:
    seen = set[str]()

    @settings(max_examples=150, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategies.batches(Rare))
    def look(batch: Rare) -> None:
        seen.update(name for name, wanted in SEEN.items() if wanted(batch))

    look()
    assert seen == set(SEEN)


def test_a_batch_may_have_no_rows() -> None:
    batch = find(strategies.batches(Questions, b=0), lambda batch: True)
    assert len(batch) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@few
@given(st.data())
def test_every_dtype_is_made(dtype: Any, data: st.DataObject) -> None:
    plain = data.draw(strategies.tensors(dtype.name, (2, 3), extreme=False))
    assert plain.dtype is getattr(torch, dtype.torch_name)
    assert plain.is_contiguous()
    assert plain.double().abs().max() <= 128
    assert plain.double().isfinite().all()
    assert data.draw(strategies.tensors(dtype, (100,))).shape == (100,)


@settings(max_examples=30)
@given(strategies.batches(Rare, extreme=False))
def test_small_values_can_be_asked_for(batch: Rare) -> None:
    assert batch.value is None or batch.value.tensor.abs().max() <= 8
    assert all(len(row) == 0 or row.abs().max() <= 100 for row in batch.tokens.rows)


class Questions(hf.Batch):
    text: hf.Obj[str, B]
    mask: hf.bool_[B, R]


class Answers(Questions):
    log_probs: hf.f32[B, R]


def test_hypothesis_knows_the_strategy_of_every_record_class() -> None:
    assert type(find(st.from_type(Questions), lambda batch: len(batch) > 1)) is Questions
    answers = find(st.builds(lambda answers: answers, answers=st.from_type(Answers)), lambda batch: True)
    assert type(answers) is Answers
    assert find(st.from_type(hf.Mesh), lambda mesh: mesh.world_size > 1) == hf.Mesh(dp=2)
    assert isinstance(find(st.from_type(hf.Cluster), lambda cluster: True), hf.Cluster)
    assert isinstance(find(st.from_type(hf.ResourcePool), lambda pool: True), hf.ResourcePool)


# -- code that can be pasted


@few
@given(st.one_of(strategies.batches(Everything), strategies.batches(Questions, b=st.integers(0, 2))))
def test_a_batch_prints_as_code_that_makes_it(batch: Batch) -> None:
    names = {"hf": hf, "torch": torch, "Everything": Everything, "Questions": Questions}
    printed = eval(pretty(batch), names)  # the code is ours
    assert type(printed) is type(batch)
    assert equal(printed, batch)


@few
@given(
    st.one_of(
        strategies.meshes(),
        strategies.pools(),
        strategies.clusters(),
        strategies.pools(3).flatmap(strategies.clusters),
        strategies.pools(2, use_gpu=False).flatmap(strategies.clusters),
        strategies.protocols(),
        strategies.protocols(lawful=False),
        strategies.placements(),
    )
)
def test_places_and_protocols_print_as_code_that_makes_them(value: Any) -> None:
    assert eval(pretty(value), {"hf": hf}) == value  # the code is ours


@few
@given(strategies.tensors(shape=(2, 2)))
def test_tensors_print_as_code_that_makes_them(tensor: torch.Tensor) -> None:
    assert equal(eval(pretty(tensor), {"torch": torch}), tensor)  # the code is ours


def test_tensors_that_are_no_list_of_numbers_print_as_torch_has_them() -> None:
    for tensor in (torch.zeros(2000), torch.eye(2).to_sparse(), torch.zeros(2, device="meta")):
        assert pretty(tensor) == repr(tensor)


def test_other_values_print_as_python_does() -> None:
    assert as_code(["a", 1, None]) == "['a', 1, None]"
    assert as_code(hf.i64(torch.tensor([1]))) == "hf.i64(torch.tensor([1], dtype=torch.int64))"
    assert as_code(hf.Obj([float("-inf")])) == "hf.Obj([float('-inf')])"
    nan = float("nan")
    assert as_code({"a": (nan,), "b": {nan}}) == "{'a': (float('nan'),), 'b': {float('nan')}}"
    assert as_code([set(), frozenset({1}), (1, 2)]) == "[set(), frozenset({1}), (1, 2)]"
    assert as_code(np.array([[1.0], [nan]], "f4")) == "np.array([[1.0], [float('nan')]], dtype='float32')"
    assert as_code(hf.Dispatch.DP_PROTO) == "hf.Dispatch.DP_PROTO"


# -- meshes, pools, protocols


@few
@given(strategies.meshes(max_world=12), strategies.meshes(axes=("dp",), folds=False, orders=False, max_world=4096))
def test_meshes_are_as_large_as_was_asked(mesh: hf.Mesh, flat: hf.Mesh) -> None:
    assert mesh.world_size <= 12
    assert flat == hf.Mesh(dp=flat.world_size)


FORMS: dict[str, Any] = {
    "fold": lambda mesh: mesh.micro_dp_size > 1 and mesh.dp > 1,
    "order": lambda mesh: mesh.order == ("tp", "dp", "pp"),
    "flat": lambda mesh: mesh.pp == mesh.tp == 1 and mesh.dp >= 8,
    "cube": lambda mesh: min(mesh.pp, mesh.dp, mesh.tp) > 1,
}


def test_meshes_of_every_form_are_made() -> None:
    seen = set[str]()

    @settings(max_examples=300, derandomize=True, database=None, phases=[Phase.generate])
    @given(strategies.meshes())
    def look(mesh: hf.Mesh) -> None:
        seen.update(name for name, wanted in FORMS.items() if wanted(mesh))

    look()
    assert seen == set(FORMS)


@few
@given(st.data())
def test_clusters_have_room_for_the_pools(data: st.DataObject) -> None:
    gpus, processes = (
        data.draw(strategies.pools(3, name="one")),
        data.draw(strategies.pools(use_gpu=False, name="other")),
    )
    cluster = data.draw(strategies.clusters(gpus, processes))
    assert gpus.world_size == 3
    assert cluster.gpus >= 3
    assert cluster.cpus >= 3 + processes.world_size


@settings(max_examples=12)
@given(strategies.protocols())
def test_lawful_protocols_are(protocol: hf.Protocol) -> None:
    check_laws(protocol, max_examples=12)


def test_other_protocols_need_not_be_lawful() -> None:
    mesh = hf.Mesh(pp=2, dp=2, tp=2)

    def breaks(protocol: hf.Protocol) -> bool:
        return protocol.joins and bool(protocol.split) and "HF405" in faults(protocol, mesh).values()

    search = settings(max_examples=2000, phases=[Phase.generate])
    find(strategies.protocols(lawful=False), breaks, settings=search)


@few
@given(strategies.meshes(), st.data())
def test_placements_are_of_the_axes_and_coordinates_of_a_mesh(mesh: hf.Mesh, data: st.DataObject) -> None:
    leaves = data.draw(strategies.placements(mesh))
    assert set(leaves) <= {"pp", "dp", "tp"}
    for axis, placement in leaves.items():
        assert not isinstance(placement, hf.At) or -1 <= placement.index < getattr(mesh, axis)


# -- sizes of a program


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.THREE_D_PROTO)
    @hf.requires("(P + R) % 8 == 0", "P + R <= 64", "B >= 10")
    def score(self, everything: Tokens) -> Tokens:
        return everything


class Tokens(hf.Batch):
    prompt: hf.i64[B, P]
    response: hf.i64[B, R]


@hf.dataflow
def judged(tokens: Tokens, judge: Judge) -> Tokens:
    first, second = hf.minibatches(tokens, 2)
    judge.score(first)
    return judge.score(second)


THREE = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([3])))


@settings(max_examples=30)
@given(strategies.bindings(judged, THREE))
def test_the_sizes_of_a_program_satisfy_all_that_it_requires(sizes: dict[Any, int]) -> None:
    assert set(sizes) == {B, P, R}
    assert sizes[B] % 6 == 0
    assert (sizes[P] + sizes[R]) % 8 == 0
    assert judged.check(THREE, sizes).ok


def test_a_program_that_no_size_satisfies_is_reported() -> None:
    @hf.dataflow
    def never(tokens: Tokens, judge: Judge) -> Tokens:
        return judge.score(tokens)

    with pytest.raises(SizeError, match="HF310: no size of R satisfies 'never'"):
        find(strategies.bindings(never, THREE, sizes={P: 70, B: 12}), lambda sizes: True)


@few
@given(strategies.dims(Everything, Groups))
def test_dims_of_several_records_fit_all_of_them(sizes: dict[Any, int]) -> None:
    lengths = [evaluate(d, sizes) for r in (Everything, Groups) for s in schema(r).fields.values() for d in s.dims]
    assert all(length.denominator == 1 and length >= 1 for length in lengths)


# -- whole programs (that they check clean and run is in tests/check/test_random_programs.py)


@settings(max_examples=5)
@given(strategies.graphs(max_nodes=4))
def test_a_program_prints_as_a_module_that_runs(program: strategies.Program) -> None:
    source = pretty(program)
    assert 2 <= len(program.lines) <= 4
    assert "\n".join(line.rstrip() for line in source.splitlines()) == program.source().strip()
    names: dict[str, Any] = {"__name__": "pasted"}
    exec(compile(source, "<pasted>", "exec"), names)  # noqa: S102  # the code is ours
    assert names["program"].body.__name__ == "program"


# -- what is loaded, and what is said where hypothesis is missing

ROOT = Path(__file__).parent.parent.parent


def in_a_new_python(code: str) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_the_room_loads_nothing_before_it_is_used() -> None:
    shown = "print(*sorted(m for m in sys.modules if m.startswith(('hfdsl', 'hypothesis', 'torch', 'pytest'))))"
    assert in_a_new_python(f"import sys, hfdsl; {shown}") == "hfdsl"
    assert in_a_new_python(f"import sys, hfdsl.testing; {shown}") == "hfdsl hfdsl.testing"
    entry = "import sys, hypothesis.strategies as st, hfdsl.testing.entry as entry; entry.register(); "
    others = "st.from_type(list[int]).validate(); print(*(m for m in sys.modules if 'hfdsl' in m))"
    loaded = "hfdsl hfdsl.testing hfdsl.testing.registration hfdsl.testing.entry hfdsl.testing.hypothesis_internals"
    assert in_a_new_python(entry + others) == loaded


def test_the_laws_need_no_hypothesis() -> None:
    blocked = "import sys; sys.modules['hypothesis'] = None; from hfdsl.testing import check_laws; "
    assert in_a_new_python(f"{blocked}check_laws('DP_PROTO', max_examples=5); print('lawful')") == "lawful"
    missing = "\ntry:\n    import hfdsl.testing.strategies\nexcept ImportError as error:\n    print(error)"
    assert (
        in_a_new_python(blocked + missing) == "hfdsl.testing.strategies needs hypothesis: pip install 'hfdsl[testing]'"
    )


def test_the_entry_point_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.hypothesis]\nhfdsl = "hfdsl.testing.entry:register"' in text
