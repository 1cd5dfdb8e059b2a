"""Batches: what a record takes, how its rows are cut and joined, and where its class may be defined."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import DefinitionError, HfError, SizeError, WiringError
from hfdsl.types.batches import rebuild, schema, upcast


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


T = hf.Add[P, R]


class Rollout(hf.Batch):
    """Declares the compound dim first: the order of columns must not matter to solving."""

    ids: hf.i64[B, T]
    prompt: hf.i64[B, P]
    log_probs: hf.f32[B, R]
    answer: hf.Obj[str, B]


class Scored(Rollout):
    reward: hf.f32[B]
    mean: hf.Metric[float, Literal["mean"]]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    tokens: hf.Metric[int, Literal["sum"]]


def columns(rows: int = 4, p: int = 2, r: int = 3) -> dict[str, Any]:
    return {
        "ids": torch.arange(rows * (p + r)).view(rows, p + r),
        "prompt": torch.zeros(rows, p, dtype=torch.int64),
        "log_probs": torch.arange(rows * r, dtype=torch.float32).view(rows, r),
        "answer": [f"row {i}" for i in range(rows)],
    }


def test_columns_read_back_as_they_were_given() -> None:
    values = columns()
    batch = Rollout(**values)
    assert batch.ids.tensor is values["ids"]
    assert type(batch.ids) is hf.i64
    assert batch.answer.objects == values["answer"]
    assert len(batch) == 4
    assert repr(batch) == "Rollout(ids: i64[4, 5], prompt: i64[4, 2], log_probs: f32[4, 3], answer: 4 objects)"


def test_a_column_of_another_record_is_a_value() -> None:
    first = Rollout(**columns())
    again = Rollout(ids=first.ids, prompt=first.prompt, log_probs=first.log_probs, answer=first.answer)
    assert again.ids.tensor is first.ids.tensor
    metrics = Metrics(loss=torch.tensor(0.5), tokens=hf.Metric(3))  # type: ignore[arg-type]  # a 0-d tensor is taken at run time
    assert (metrics.loss.value, metrics.tokens.value) == (0.5, 3)
    assert repr(metrics) == "Metrics(loss: 0.5, tokens: 3)"


def test_the_schema_has_the_bases_columns_first() -> None:
    assert list(schema(Scored).fields) == ["ids", "prompt", "log_probs", "answer", "reward", "mean"]
    assert str(Scored.reward) == "f32[B]"
    assert str(schema(Scored).row) == "B"
    assert schema(Metrics).row is None


def changed(**update: Any) -> Callable[[], Any]:
    present = {**columns(), **update}
    return lambda: Rollout(**{name: value for name, value in present.items() if value is not None})


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (changed(logprobs=1), "HF201: 'Rollout' has no column 'logprobs'; did you mean 'log_probs'?"),
        (changed(zzz=1), "HF201: 'Rollout' has no column 'zzz'; there are: ids, prompt, log_probs, answer"),
        (
            lambda: Rollout(torch.zeros(2, 3)),  # type: ignore[call-arg]  # the mistake
            ("HF202: 'Rollout' takes its columns by name: Rollout(ids=..., prompt=..., log_probs=..., answer=...)"),
        ),
        (changed(answer=None, ids=None), "HF203: 'Rollout' is built without its column(s) ids, answer"),
        (
            changed(log_probs=torch.zeros(4, 3, dtype=torch.bfloat16)),
            (
                "HF220: column 'log_probs' of 'Rollout' is declared f32[B, R] and got bf16[4, 3]; "
                "convert it with .to(torch.float32)"
            ),
        ),
        (
            changed(log_probs=torch.zeros(4, 3, dtype=torch.complex64)),
            (
                "HF220: column 'log_probs' of 'Rollout' is declared f32[B, R] and got torch.complex64[4, 3]; "
                "convert it with .to(torch.float32)"
            ),
        ),
        (
            changed(log_probs=torch.zeros(4)),
            "HF210: column 'log_probs' of 'Rollout' is declared f32[B, R] and got f32[4]: rank 1 where 2 is needed",
        ),
        (
            changed(log_probs=torch.zeros(4, 7)),
            (
                "HF210: column 'ids' of 'Rollout' is declared i64[B, P+R] and got i64[4, 5]: dim 1 is 5 where P+R = 9 "
                "(P=2 from 'prompt', R=7 from 'log_probs')"
            ),
        ),
        (
            changed(answer=["one"]),
            (
                "HF210: column 'answer' of 'Rollout' is declared Obj[str, B] and got 1 objects: dim 0 is 1 where B = 4 "
                "(B=4 from 'ids')"
            ),
        ),
        (
            changed(log_probs=[[0.0]]),
            "HF206: column 'log_probs' of 'Rollout' takes a torch.Tensor as f32[B, R], got list",
        ),
        (changed(answer="text"), "HF206: column 'answer' of 'Rollout' takes a list with one object per row, got str"),
        (
            changed(answer={"a": 1}),
            "HF206: column 'answer' of 'Rollout' takes a list with one object per row, got dict",
        ),
    ],
)
def test_arguments_that_a_record_does_not_take(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(WiringError) as error:
        build()
    assert str(error.value) == text


def test_a_record_never_changes() -> None:
    batch = Rollout(**columns())
    for name in ("ids", "other"):
        with pytest.raises(WiringError) as error:
            setattr(batch, name, batch.ids)
        assert str(error.value) == f"HF206: 'Rollout.{name}' cannot be set: a record never changes; build a new one"


# -- declarations


def declare(annotation: str) -> None:
    body = {"__annotations__": {"x": "hf.f32[B]", "y": annotation}, "__module__": __name__}
    schema(type("Declared", (hf.Batch,), body))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("torch.Tensor", "HF104: column 'y' of 'Declared': Tensor has neither dtype nor dims"),
        ("hf.f32[P]", "HF115: column 'y' of 'Declared' has row dim P, other columns of the record have B"),
        ("hf.Obj[str, P]", "HF115: column 'y' of 'Declared' has row dim P, other columns of the record have B"),
        ("hf.f32[B, 8]", "HF101: column 'y' of 'Declared': 8 is not a dim"),
        ('hf.Metric[float, "median"]', "HF116: column 'y' of 'Declared': no reduction 'median'"),
        ("hf.f32[Nowhere]", "HF109: column 'y' of 'Declared': cannot evaluate 'hf.f32[Nowhere]' (name 'Nowhere'"),
    ],
)
def test_declarations_without_meaning(annotation: str, text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        declare(annotation)
    assert str(error.value).startswith(text)


def test_a_column_has_no_default() -> None:
    with pytest.raises(DefinitionError, match="HF117: column 'x' of 'Late' has the default "):

        class Late(hf.Batch):
            x: hf.f32[B] = 1  # type: ignore[assignment]  # a mistake on purpose


def test_dims_of_a_function_are_seen_from_a_class_in_it() -> None:
    class Local(hf.Dim): ...

    class Inside(hf.Batch):
        x: hf.f32[Local, R]

    assert str(Inside.x) == "f32[Local, R]"
    assert Inside(x=torch.zeros(2, 3)).x.tensor.shape == (2, 3)


class Forward(hf.Batch):
    x: hf.f32[Later]


class Later(hf.Dim): ...


def test_a_dim_that_is_defined_further_down_is_read_at_first_use() -> None:
    assert str(Forward.x) == "f32[Later]"


# -- rows


@given(st.integers(0, 6), st.data())
def test_slices_are_those_of_a_list(rows: int, data: st.DataObject) -> None:
    batch = Rollout(**columns(rows))
    bound = st.one_of(st.none(), st.integers(-8, 8))
    cut = slice(data.draw(bound), data.draw(bound))
    assert batch[cut].answer.objects == batch.answer.objects[cut]
    assert batch[cut].ids.tensor.tolist() == batch.ids.tensor.tolist()[cut]
    assert len(batch[cut]) == len(batch.answer.objects[cut])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_joining_the_parts_gives_the_whole(sizes: list[int]) -> None:
    rollout = Rollout(**columns(sum(sizes)))
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    parts = [rollout.__hf_slice__(a, b) for a, b in pairwise(ends)]
    joined = Rollout.__hf_concat__(parts)
    assert joined.ids.tensor.equal(rollout.ids.tensor)
    assert joined.answer.objects == rollout.answer.objects


def test_tensors_of_a_slice_are_views_and_objects_are_not() -> None:
    batch = Rollout(**columns())
    part = batch[1:3]
    batch.log_probs.tensor[1] = 9.0
    assert part.log_probs.tensor[0].tolist() == [9.0] * 3


def test_metrics_are_reduced_when_joined_and_never_split() -> None:
    parts = [Metrics(loss=1.0, tokens=2), Metrics(loss=4.0, tokens=3)]
    joined = Metrics.__hf_concat__(parts)
    assert (joined.loss.value, joined.tokens.value) == (2.5, 5)
    with pytest.raises(SizeError, match="HF413: 'Metrics' holds metrics only: it has no rows to count, split or slice"):
        len(joined)


@pytest.mark.parametrize(("index", "shown"), [(0, "0"), (slice(0, 4, 2), "0:4:2"), (slice(None, None, -1), "::-1")])
def test_a_record_takes_no_other_index(index: Any, shown: str) -> None:
    with pytest.raises(WiringError) as error:
        Rollout(**columns())[index]
    assert str(error.value) == f"HF206: 'Rollout' takes slices of consecutive rows, got [{shown}]"
    with pytest.raises(WiringError, match="HF206"):
        list(Rollout(**columns()))  # type: ignore[call-overload]  # a mistake on purpose


def test_upcast_keeps_the_columns_of_the_base() -> None:
    scored = Scored(**columns(), reward=torch.zeros(4), mean=0.5)
    base = upcast(scored, Rollout)
    assert type(base) is Rollout
    assert base.ids.tensor is scored.ids.tensor
    assert list(base.__hf_columns__) == list(schema(Rollout).fields)
    assert upcast(base, Rollout) is base


# -- pickling


def test_pickling_takes_the_rows_of_a_view_and_no_others() -> None:
    rollout = Rollout(**columns(rows=4096))
    part = rollout[10:12]
    text = pickle.dumps(part)
    assert len(text) < 3000
    again = pickle.loads(text)
    assert type(again) is Rollout
    assert again.ids.tensor.equal(part.ids.tensor)
    assert again.answer.objects == part.answer.objects


def test_rebuild_checks_nothing() -> None:
    assert rebuild(Metrics, {"loss": 1.0, "tokens": 1}).loss.value == 1.0


NOTEBOOK = """
import pickle, subprocess, sys, torch
import hfdsl as hf
cloudpickle = __import__(sys.argv[1], fromlist=["dumps"])

class B(hf.Dim): ...
class R(hf.Dim): ...
class Rollout(hf.Batch):
    log_probs: hf.f32[B, R]
    answer: hf.Obj[str, B]

batch = Rollout(log_probs=torch.ones(2, 3), answer=["a", "b"])
reader = '''
import pickle, sys
batch = pickle.load(sys.stdin.buffer)
again = type(batch)(log_probs=batch.log_probs, answer=batch.answer)
try:
    type(batch)(log_probs=batch.log_probs, answer=["a"])
except Exception as error:
    print(error.code)
print(again, batch[1:].answer.objects, type(batch).log_probs)
'''
done = subprocess.run([sys.executable, "-c", reader], input=cloudpickle.dumps(batch), capture_output=True)
print(done.stdout.decode(), done.stderr.decode())
"""


def test_a_class_of_a_notebook_travels_to_another_process() -> None:
    library = "cloudpickle"
    try:
        __import__(library)
    except ImportError:
        library = "ray.cloudpickle"
        pytest.importorskip(library)
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, library], capture_output=True, text=True, cwd=root, check=False
    )
    assert process.stdout.split("\n")[:2] == [
        "HF210",
        "Rollout(log_probs: f32[2, 3], answer: 2 objects) ['b'] f32[B, R]",
    ], process.stdout + process.stderr


@pytest.mark.parametrize("family", [HfError, WiringError, SizeError])
def test_errors_travel_too(family: type[HfError]) -> None:
    again = pickle.loads(pickle.dumps(family("HF210", "rows differ")))
    assert (type(again), again.code, str(again)) == (family, "HF210", "HF210: rows differ")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "takes a number, got None"),
        ("0.5", "takes a number, got the str '0.5'"),
        (torch.ones(3), "takes one number, got 3 in a value of type Tensor; reduce it"),
        ([0.5], "takes a number, got the list"),
    ],
)
def test_a_metric_is_one_number(value: Any, got: str) -> None:
    with pytest.raises(WiringError, match=f"HF206: column 'loss' of 'Metrics' {got}"):
        Metrics(loss=value, tokens=1)
    with pytest.raises(WiringError, match=f"HF206: hf.Metric {got}"):
        hf.Metric(value)
    assert Metrics(loss=torch.ones(1), tokens=1).loss.value == 1.0  # type: ignore[arg-type]  # taken at run time


# -- several bases


class Weighted(hf.Batch):
    x: hf.f32[B]
    weight: hf.f32[B] | None = None


class Counted(hf.Batch):
    x: hf.i64[B]


class Optional(hf.Batch):
    x: hf.f32[B]
    weight: hf.f32[B] | None


class Same(hf.Batch):
    x: hf.f32[B]


class Narrowed(Counted):
    x: hf.f32[B]  # type: ignore[assignment]  # another type on purpose


class Kept(Counted):
    x: hf.i64[B]


@pytest.mark.parametrize(
    ("bases", "text"),
    [
        ((Weighted, Counted), "'x' of 'Both' has two types: 'Weighted' declares f32[B], 'Counted' declares i64[B]"),
        ((Counted, Weighted), "'x' of 'Both' has two types: 'Counted' declares i64[B], 'Weighted' declares f32[B]"),
        (
            (Weighted, Optional),
            (
                "'weight' of 'Both' has two types: 'Weighted' declares f32[B] | None = None, "
                "'Optional' declares f32[B] | None"
            ),
        ),
        ((Kept, Narrowed), "'x' of 'Both' has two types: 'Kept' declares i64[B], 'Narrowed' declares f32[B]"),
    ],
)
def test_bases_that_declare_a_column_differently(bases: tuple[type[hf.Batch], ...], text: str) -> None:
    with pytest.raises(DefinitionError) as error:
        schema(type("Both", bases, {"__module__": __name__}))
    assert str(error.value) == f"HF104: column {text}; declare it in 'Both'"
    assert error.value.column == text[1:].partition("'")[0]


def test_a_declaration_in_a_derived_record_decides() -> None:
    own = type("Own", (Weighted, Counted), {"__annotations__": {"x": "hf.i64[B]"}, "__module__": __name__})
    assert str(schema(own).fields["x"]) == "i64[B]"
    assert str(schema(type("Further", (own,), {"__module__": __name__})).fields["x"]) == "i64[B]"
    assert str(schema(Narrowed).fields["x"]) == "f32[B]"
    assert str(schema(type("Alike", (Weighted, Same), {"__module__": __name__})).fields["x"]) == "f32[B]"
    assert str(schema(type("Overridden", (Same, Narrowed), {"__module__": __name__})).fields["x"]) == "f32[B]"
    other = type("Other", (Counted,), {"__module__": __name__})
    assert str(schema(type("Diamond", (other, Narrowed), {"__module__": __name__})).fields["x"]) == "f32[B]"
