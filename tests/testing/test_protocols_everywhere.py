"""hfdsl's own protocols on itself: every mesh of up to 16 ranks in every numbering, and random ones up to 4,096 ranks.

With HFDSL_NIGHTLY=1 also in records with every kind of column, and on many more large meshes.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.protocols import PREDEFINED, Protocol
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.transfer import collect, dispatch
from hfdsl.testing import strategies
from hfdsl.testing.laws.check import applying, meshes_up_to
from hfdsl.testing.laws.subject import subject_of
from hfdsl.testing.laws.trial import Breach, Case, Trial
from hfdsl.testing.laws.values import LIST, RECORD, ContainerKind
from tests.nightly import NIGHTLY

KINDS = (LIST, RECORD) if NIGHTLY else (LIST,)
SPLITTING = ("DP_PROTO", "THREE_D_PROTO", "THREE_D_ALL_MICRO_DP")


def test_the_meshes_are_those_of_up_to_sixteen_ranks() -> None:
    """Counted in another way: shapes times folds times orders of the axes that are longer than 1."""
    count = 0
    for pp in range(1, 17):
        for dp in range(1, 17):
            for tp in range(1, 17):
                if pp * dp * tp <= 16:
                    folds = sum(pp % n == 0 for n in range(1, pp + 1)) * sum(tp % n == 0 for n in range(1, tp + 1))
                    long = sum(size > 1 for size in (pp, dp, tp))
                    count += folds * (1, 1, 2, 6)[long]
    assert len(meshes_up_to(16)) == count


def hold(name: str, mesh: hf.Mesh, most: int, kind: ContainerKind = LIST) -> None:
    """Every law, with up to ``most`` rows a chunk. (Plans are in tests/plan, on random meshes.)"""
    subject = subject_of(hf.Dispatch[name])
    chunks = subject.chunks(mesh)
    for law in (law for law in applying(subject) if law.share == 1.0):
        for rows in range(chunks, most * chunks + 1, chunks) if law.rows == "even" else {1, most * chunks - 1 or 1}:
            case = Case(mesh, rows, kind)
            try:
                law.holds(Trial(subject, case))
            except Breach as breach:
                pytest.fail(f"{name} breaks {law} with {case}: {breach}")


@pytest.mark.sampled
@pytest.mark.nightly_besides("DP_PROTO")
@pytest.mark.parametrize("name", PREDEFINED)
def test_a_predefined_protocol_keeps_every_law_on_every_mesh(name: str) -> None:
    for mesh in meshes_up_to(16):
        for kind in KINDS:
            hold(name, mesh, 2, kind)


@pytest.mark.parametrize("name", PREDEFINED)
@settings(max_examples=200 if NIGHTLY else 4)
@given(mesh=strategies.meshes(max_world=4096))
def test_a_predefined_protocol_keeps_every_law_on_large_meshes(name: str, mesh: hf.Mesh) -> None:
    hold(name, mesh, 1)


def rows_of(batch: Any) -> list[tuple[Any, ...]]:
    tokens = [tuple(row.tolist()) for row in batch.tokens.rows]
    columns = (batch.number.tensor.tolist(), batch.name.objects, tokens, batch.weight.tensor.tolist())
    return list(zip(*columns, strict=True))


@settings(max_examples=400 if NIGHTLY else 40)
@given(
    strategies.meshes(),
    st.sampled_from(SPLITTING),
    st.integers(1, 9),
    st.sampled_from(get_args(Pad)),
    st.sampled_from([1, 2, 3]),
)
def test_pad_rows_never_leak_and_never_grow_the_callers_object(
    mesh: hf.Mesh, name: str, count: int, pad: Pad, group: int
) -> None:
    """With every column that a record can have: what ranks see beyond the rows is rows of the caller's, and goes."""
    protocol: Protocol = PREDEFINED[name]
    batch = RECORD.make(range(count * group))
    before, columns = rows_of(batch), dict(batch.__hf_columns__)
    [placed], _, row_split = dispatch(protocol, mesh, (batch,), {}, pad=pad, group=group)
    seen = [row for part in placed for row in rows_of(part)]
    assert set(seen) == set(before)  # nothing was made up
    assert len({len(part) for part in placed}) == 1
    poisoned = [RECORD.make([-1 - row for row in RECORD.read(part)]) for part in placed]
    got = collect(protocol, mesh, poisoned, row_split=row_split)
    assert RECORD.read(got) == [-1 - row for row in range(count * group)]
    assert rows_of(batch) == before
    assert all(batch.__hf_columns__[column] is value for column, value in columns.items())
    assert torch.equal(batch.number.tensor, torch.arange(count * group))
