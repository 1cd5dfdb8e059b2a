"""What a body returns is what it declares: widths, objects, layouts, and numbers that are declared finite."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError, HfError, RoleError, WiringError
from tests.runtime.value_programs import (
    Role,
    Rows,
    loose,
    loose_finite,
    names,
    record,
    scores,
    taken,
    taken_optional,
    texts,
    three,
    whole_numbers,
)

X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


def step(program: Any, result: Any = None, x: torch.Tensor = X, backend: str = "local") -> Any:
    deployment = hf.Deployment(role=hf.place(Role, result, pool=hf.ResourcePool([2], use_gpu=False)))
    with program.compile(deployment).launch(backend) as running:
        return running.step(Rows(x=x))


def eager(program: Any, result: Any = None, x: torch.Tensor = X) -> Any:
    return program(Rows(x=x), Role(result))


BOTH = pytest.mark.parametrize("run", [step, eager])


@BOTH
def test_a_width_that_is_written_as_a_number_is_held(run: Any) -> None:
    with pytest.raises(WiringError, match=r"HF805: 'role.three' returned a width of 2 on rank 0, where it declares 3"):
        run(three, 2)
    assert run(three, 3) is not None


GOOD_TEXTS = {"texts": ["a"] * 4, "numbers": [[1]] * 4}


@BOTH
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"texts": ["a", 1, "b", "c"]},
            r"column 'texts' with the int 1 in row 1 on rank 0; it is declared Obj\[str, B\]",
        ),
        ({"texts": [None] * 4}, "column 'texts' with the NoneType None in row 0"),
        ({"scores": [{"a": 1.0}, {"a": 1, "b": "c"}, {}, {}]}, "column 'scores' with the dict {.*} in row 1"),
        ({"numbers": [[1], ["x"], [2], [3]]}, r"column 'numbers' with the list \['x'\] in row 1"),
        ({"either": ["a", b"b", None, ""]}, r"column 'either' with the bytes b'b' in row 1"),
    ],
)
def test_objects_are_of_the_declared_type(run: Any, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(WiringError, match=f"HF805: 'role.texts' returned {message}"):
        run(texts, GOOD_TEXTS | columns)


@BOTH
def test_a_loose_column_of_objects_is_held_too(run: Any) -> None:
    with pytest.raises(WiringError, match=r"HF805: 'role.names' returned an object with the int 7 in row 1"):
        run(names, ["a", 7, "b", "c"])
    assert run(names, ["a", "b", "c", "d"]) is not None


@BOTH
def test_objects_of_the_declared_type_pass(run: Any) -> None:
    class Text(str):
        __slots__ = ()

    columns = {
        "texts": [Text("a"), "b", "c", ""],
        "numbers": [[], [True], [1, 2], [3]],
        "either": [None, "a", None, ""],
        "scores": [{}, {Text("a"): 1}, {"b": 0.5, "c": True}, {}],
    }
    assert run(texts, GOOD_TEXTS | columns) is not None


@BOTH
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x[:, 0].to_sparse(), "one of layout torch.sparse_coo: .to_dense\\(\\) makes it dense"),
        (lambda x: x[:, 0].to("meta"), "a meta tensor, which has a shape and no values"),
    ],
)
def test_a_tensor_without_dense_values_is_refused(run: Any, result: Any, message: str) -> None:
    with pytest.raises(WiringError, match=f"HF805: 'role.loose' declares .* and returned {message}"):
        run(loose, result)
    with pytest.raises(HfError, match=f"HF206.* takes a dense tensor as .*, got {message}") as caught:
        run(record, lambda x: result(x).unsqueeze(1) if result(x).is_meta else x.to_sparse())
    assert isinstance(caught.value, (WiringError, RoleError))


# -- finite


@BOTH
def test_a_number_that_is_not_finite_is_named_by_row(run: Any) -> None:
    x = X + 1
    x[3, 0] = 0
    with pytest.raises(WiringError) as caught:
        run(scores, x=x)
    row = "row 3" if run is eager else "row 3 (row 1 of rank 1)"
    assert str(caught.value).startswith(f"HF820: 'role.scores' returned inf in column 'score' at {row}; it is declared")
    assert run(scores, x=X + 1) is not None


@BOTH
def test_a_ragged_column_is_named_by_row_and_index(run: Any) -> None:
    x = X + 1
    x[2, 1] = 1  # whose logarithm is 0
    with pytest.raises(WiringError, match=r"returned nan in column 'values' at row 2 ?.*, index \[1\]; it is declared"):
        run(scores, x=x)


@BOTH
def test_loose_columns_and_arguments_are_held(run: Any) -> None:
    x = X.clone()
    x[1, 0] = math.nan
    with pytest.raises(WiringError, match=r"HF820: 'role.loose_finite' returned nan at row 1"):
        run(loose_finite, x=x)
    x[1, 0] = 0
    with pytest.raises(WiringError, match=r"HF820: 'role.take' received, in its argument 'score', inf at row 1"):
        run(taken, x=x)
    with pytest.raises(WiringError, match=r"HF820: 'role.take_optional' received, in its argument 'score', inf at"):
        run(taken_optional, x=x)
    assert torch.equal(run(taken, x=X + 1).tensor, 1 / (X[:, 0] + 1))


@BOTH
def test_whole_numbers_are_always_finite(run: Any) -> None:
    assert run(whole_numbers) is not None


def test_the_mark_is_for_columns_of_numbers() -> None:
    from typing import Annotated

    from tests.runtime.value_programs import B

    with pytest.raises(DefinitionError, match=r"HF104: .* hf.finite is a mark of columns with numbers"):

        class Marked(hf.Batch):
            text: Annotated[hf.Obj[str, B], hf.finite]


# -- threads


def test_a_run_is_not_stepped_saved_or_loaded_by_two_threads(tmp_path: Any) -> None:
    begun, finished = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert finished.wait(60)
        return x

    deployment = hf.Deployment(role=hf.place(Role, slow, pool=hf.ResourcePool([1], use_gpu=False)))
    with record.compile(deployment).launch() as running:
        first = threading.Thread(target=running.step, args=(Rows(x=X),), name="first")
        first.start()
        try:
            assert begun.wait(60)
            message = "HF821: .* was called during a step of 'record' in thread 'first', which has not returned"
            for call in (lambda: running.step(Rows(x=X)), lambda: running.save(tmp_path)):
                with pytest.raises(HfError, match=message):
                    call()
        finally:
            finished.set()
            first.join(60)
        assert torch.equal(running.step(Rows(x=X)).x.tensor, X)
        assert running.steps == 2
