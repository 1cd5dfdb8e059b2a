"""Wrappers: a body that takes a column for what it holds gets a message that says where the tensor is."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hfdsl as hf

COMPUTED: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda x: x * 2, hf.f32(torch.ones(2)), "f32 has no operator 'mul': its value is in .tensor"),
    (lambda x: torch.ones(2) - x, hf.f32(torch.ones(2)), "f32 has no operator 'rsub': its value is in .tensor"),
    (lambda x: x > 0, hf.i64(torch.ones(2).long()), "i64 has no operator 'gt': its value is in .tensor"),
    (operator.neg, hf.f32(torch.ones(2)), "f32 has no operator 'neg': its value is in .tensor"),
    (lambda x: x[0], hf.Obj(["a"]), "Obj has no operator 'getitem': its value is in .objects"),
    (lambda x: sum([x, x]), hf.Metric(2.0), "Metric has no operator 'radd': its value is in .value"),
    (float, hf.Metric(2.0), "Metric has no operator 'float': its value is in .value"),
]


@pytest.mark.parametrize(("compute", "wrapper", "message"), COMPUTED)
def test_computing_with_a_wrapper_names_the_way_to_what_it_holds(
    compute: Callable[[Any], Any], wrapper: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        compute(wrapper)


@pytest.mark.parametrize(
    ("wrapper", "name", "way"),
    [(hf.f32(torch.ones(2)), "sum", "tensor"), (hf.Obj(["a"]), "append", "objects"), (hf.Metric(2), "item", "value")],
)
def test_an_attribute_of_the_wrapped_tensor_names_the_way_to_it(wrapper: Any, name: str, way: str) -> None:
    kind = type(wrapper).__name__
    with pytest.raises(AttributeError, match=rf"^{kind} has no '{name}': its value is in \.{way}$") as caught:
        getattr(wrapper, name)
    assert (caught.value.name, caught.value.obj) == (name, wrapper)
    assert not hasattr(wrapper, name)


def test_wrappers_are_still_copied_pickled_and_true() -> None:
    wrappers: list[Any] = [hf.f32(torch.ones(2)), hf.Obj(["a"]), hf.Metric(2.0)]
    for wrapper in wrappers:
        assert bool(wrapper)  # an optional column is None where it is absent
        assert repr(copy.deepcopy(wrapper)) == repr(pickle.loads(pickle.dumps(wrapper))) == repr(wrapper)
