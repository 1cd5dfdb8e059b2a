"""Columns: how annotations are read, and what wrappers hold."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError
from hfdsl.types.column_annotations import field_spec
from hfdsl.types.columns import COLUMNS, REDUCTIONS, ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import size
from hfdsl.types.dtypes import BY_TORCH_NAME, DTYPES, Float32


class B(hf.Dim): ...


class R(hf.Dim): ...


def test_a_column_is_its_dtype_and_dims_in_normal_form() -> None:
    spec = field_spec(hf.f32[B, hf.Add[R, Literal[1]]], "x")
    assert spec == ColumnSpec(Float32, (size(B), size(hf.Add[Literal[1], R])))
    assert str(spec) == "f32[B, R+1]"


def test_objects_and_metrics() -> None:
    assert field_spec(hf.Obj[str, B], "x") == ObjSpec(str, size(B))
    assert str(field_spec(hf.Obj[dict[str, int], B], "x")) == "Obj[dict, B]"
    assert field_spec(hf.Metric[float, Literal["mean"]], "x") == MetricSpec(float, "mean")
    assert field_spec(hf.Metric[float, "mean"], "x") == MetricSpec(float, "mean")  # type: ignore[name-defined]  # read at run time, as an annotation in quotes is
    assert str(field_spec(hf.Metric[int, Literal["sum"]], "x")) == 'Metric[int, "sum"]'


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_column_of_its_name_and_torch_knows_it(dtype: Any) -> None:
    column: Any = getattr(hf, dtype.name)
    assert COLUMNS.get(dtype) is getattr(hf, dtype.name)
    assert column.__name__ == dtype.name
    assert field_spec(column[B], "x") == ColumnSpec(dtype, (size(B),))
    tensor = torch.zeros(3, dtype=getattr(torch, dtype.torch_name))
    assert tensor.element_size() == dtype.itemsize
    assert BY_TORCH_NAME[str(tensor.dtype).removeprefix("torch.")] is dtype
    assert column(tensor).tensor is tensor
    assert column[B](tensor).tensor is tensor


def test_wrappers_hold_and_show_values() -> None:
    assert repr(hf.i64(torch.tensor([1]))) == "i64(tensor([1]))"
    rows = ["a", "b"]
    objects = hf.Obj[str, B](rows)
    objects.objects.append("c")
    rows.append("d")
    assert objects.objects == ["a", "b"]
    assert repr(objects) == "Obj(['a', 'b'])"
    assert repr(hf.Metric(2)) == "Metric(2)"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (torch.Tensor, "HF104: x: Tensor has neither dtype nor dims; write a column such as f32[B, R]"),
        (hf.f32, "HF104: x: f32 has no dims; write them as in f32[B, R]"),
        (int, "HF104: x: int has neither dtype nor dims"),
        (hf.Column[int, B], "HF102: x: a column is one of f64, f32, bf16"),  # type: ignore[type-var]  # a mistake on purpose
        (hf.f32[3, B], "HF101: x: 3 is not a dim"),  # type: ignore[valid-type]  # a mistake on purpose
        (hf.Metric[float, Literal["median"]], "HF116: x: no reduction 'median'; there are mean, sum, max, min, first"),
    ],
)
def test_what_is_no_column(annotation: object, text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        field_spec(annotation, "x")
    assert str(error.value).startswith(text)


def test_reductions() -> None:
    values = [0.1, 0.2, 0.3, -4.0]
    assert {name: reduce(values) for name, reduce in REDUCTIONS.items()} == {
        "mean": pytest.approx(-0.85), "sum": pytest.approx(-3.4), "max": 0.3, "min": -4.0, "first": 0.1, "last": -4.0,
    }  # fmt: skip  # a table
    assert REDUCTIONS["sum"]([2**60, 1]) == 2**60 + 1, "integers are summed as integers"
    tenths = [0.1] * 10
    assert REDUCTIONS["sum"]([*tenths, 1e16, -1e16]) == REDUCTIONS["sum"]([1e16, *tenths, -1e16]) == 1.0


def test_objects_and_metrics_take_two_parameters() -> None:
    with pytest.raises(DefinitionError, match=r"^HF104: Obj takes the type of an object and the row dim"):
        hf.Obj[B]  # type: ignore[misc]  # the mistake
    with pytest.raises(DefinitionError, match=r"^HF116: Metric takes the type of a number and a reduction"):
        hf.Metric[float]  # type: ignore[misc]  # the mistake
