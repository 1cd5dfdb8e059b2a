"""The deploy API called with values of other kinds: what comes out is a value, or an error with a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.check.codes import CODES
from tests.nightly import examples


class B(hf.Dim): ...


class Rows(hf.Batch):
    values: hf.f32[B]


class Role(hf.Worker):
    def __init__(self, size: int = 1) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...  # type: ignore[empty-body]


@hf.dataflow
def program(rows: Rows, role: Role) -> Rows:
    return role.score(rows)


def pool() -> hf.ResourcePool:
    return hf.ResourcePool([2], use_gpu=False)


def deployment() -> hf.Deployment:
    return hf.Deployment(role=hf.place(Role, pool=pool()))


WRONG: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=3), st.binary(max_size=2),
    st.lists(st.one_of(st.integers(-1, 3), st.text(max_size=1), st.none()), max_size=3),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), st.integers(), max_size=2),
    st.sampled_from([object(), Role, Rows, B, program, len, hf.Mesh(dp=2), range(3), iter([1]), {1, 2}, 1j, ...]),
    st.builds(pool), st.builds(deployment), st.builds(lambda: hf.place(Role, pool=pool())),
    st.builds(lambda: hf.Cluster(hf.Nodes(1, cpus=4))),
)  # fmt: skip  # one kind a line
PARAMETERS = (
    "pool mesh colocate gpu_memory transport offload name use_gpu parts part_of processes sizes other dp tp pp gen_tp "
    "gen_pp order role dataflow deployment dims batches seed cluster size span strange"
)
NAMES = st.sampled_from(PARAMETERS.split())
CALLS: dict[str, Callable[..., Any]] = {
    "place": hf.place,
    "placed": lambda *args, **kwargs: hf.place(Role, *args, **{"pool": pool(), **kwargs}),
    "ResourcePool": hf.ResourcePool,
    "pool of two": lambda *args, **kwargs: hf.ResourcePool([2], *args, **kwargs),
    "split": lambda *args, **kwargs: pool().split(*args, **kwargs),
    "merge": lambda *args, **kwargs: pool().merge(*args, **kwargs),
    "Mesh": hf.Mesh,
    "Deployment": hf.Deployment,
    "a place of": lambda *args, **kwargs: deployment().__getitem__(*args[:1] or (None,)),
    "Experiment": hf.Experiment,
    "experiment": lambda *args, **kwargs: hf.Experiment(program, deployment(), *args, **kwargs),
}


@pytest.mark.parametrize("call", CALLS)
@settings(deadline=None, max_examples=examples(800))
@given(args=st.lists(WRONG, max_size=3), kwargs=st.dictionaries(NAMES, WRONG, max_size=3))
def test_values_of_other_kinds_are_refused_with_a_code(call: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    value, code = None, "HF501"
    try:
        value = CALLS[call](*args, **kwargs)
    except hf.HfError as error:
        code = error.code
    assert code in CODES
    if isinstance(value, hf.ResourcePool):
        assert value.world_size >= 1
        assert str(value)
    if isinstance(value, hf.Experiment):
        assert set(value.check().codes) <= set(CODES)


@pytest.mark.parametrize("call", CALLS)
def test_missing_or_unknown_arguments_are_refused_with_a_code(call: str) -> None:
    for args, kwargs in (((), {"strange": 1}), ((1, 2, 3, 4, 5, 6, 7, 8), {})):
        if (call, bool(args)) in (("placed", False), ("placed", True), ("a place of", False)):
            continue  # a constructor's own arguments, which the check holds against it
        with pytest.raises(hf.HfError, match="HF"):
            CALLS[call](*args, **kwargs)


def test_a_name_that_is_close_is_offered() -> None:
    mesh: Any = hf.Mesh
    with pytest.raises(hf.HfError, match=r"hf\.Mesh has no parameter 'tpp'; did you mean 'tp'\?"):
        mesh(tpp=2)


def test_an_error_within_a_constructor_keeps_its_own_kind() -> None:
    with pytest.raises(hf.HfError, match="HF523"):
        hf.Experiment(program, deployment(), cluster=5)  # type: ignore[arg-type]
