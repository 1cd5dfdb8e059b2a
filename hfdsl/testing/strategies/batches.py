"""Tensors and records: every dtype, extreme values, ragged, object, optional and empty columns."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from hypothesis import strategies as st

from hfdsl.errors import WiringError
from hfdsl.testing.arguments import names_of, number_of, refused, several_of
from hfdsl.testing.strategies.sizes import dims
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import evaluate
from hfdsl.types.dtypes import DTYPES, DType
from hfdsl.types.ragged import Jagged
from hfdsl.types.similar_names import closest

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's own lines

BatchT = TypeVar("BatchT", bound=Batch)

BY_NAME = {dtype.name: dtype for dtype in DTYPES}

MAX_DRAWN_ELEMENTS = 8
"""The maximum number of elements drawn one by one; the others are equal."""

READABLE = st.text(st.sampled_from("abcxyz019 _é語"), max_size=6)
"""Texts that can be read in a terminal."""

FLOATS = ("f64", "f32", "bf16", "f16")


def elements(dtype: type[DType], *, extreme: bool = True) -> st.SearchStrategy[Any]:
    """The values of a dtype; without ``extreme`` ones, small multiples of a quarter, whose sums are exact."""
    if dtype.name == "bool_":
        return st.booleans()
    if dtype.name in FLOATS:
        plain = st.integers(-32, 32).map(lambda n: n / 4)
        rare = st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])
        return rare | st.floats(width=64 if dtype.name == "f64" else 32) if extreme else plain
    bits = 8 * dtype.itemsize
    least, most = (0, 2**bits - 1) if dtype.name == "u8" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.integers(least, most) if extreme else st.integers(max(least, -100), 100)


@st.composite
def tensors(
    draw: st.DrawFn, dtype: str | type[DType] | None = None, shape: Sequence[int] = (3,), *, extreme: bool = True
) -> torch.Tensor:
    """Tensors of a dtype by hfdsl's name (of any) and a shape.

    ``extreme`` ones have infinities, values that are no number, the largest and smallest, and may not be contiguous.

    Raises:
        DefinitionError: HF921 for an unknown dtype, and for a shape that is none.

    >>> from hypothesis import find
    >>> find(tensors("i8", (2, 2)), lambda x: x[0, 0] == 127)
    tensor([[127,   0],
            [  0,   0]], dtype=torch.int8)
    """
    import torch

    if isinstance(dtype, str):
        names_of("tensors", "dtype", dtype, list(BY_NAME), "dtype")
    chosen = draw(st.sampled_from(DTYPES)) if dtype is None else BY_NAME[dtype] if isinstance(dtype, str) else dtype
    if not isinstance(chosen, type) or chosen not in DTYPES:
        raise refused("tensors", "dtype", "a dtype of hfdsl or its name, as in 'f32'", dtype)
    shape = several_of("tensors", "shape", "the lengths of the dims in a tuple, as in (2, 3)", shape)
    for length in shape:
        number_of("tensors", "a length in shape", length, 0)
    count, values = 1, elements(chosen, extreme=extreme)
    for length in shape:
        count *= length
    drawn_values = draw(
        st.lists(values, min_size=min(count, MAX_DRAWN_ELEMENTS), max_size=min(count, MAX_DRAWN_ELEMENTS))
    )
    padding = [draw(values)] * (count - len(drawn_values)) if count > len(drawn_values) else []
    wide = torch.float64 if chosen.name in FLOATS else None  # what is too large for f16 becomes an infinity
    flat = torch.tensor([*drawn_values, *padding], dtype=wide) if count else torch.zeros(0)
    tensor = flat.to(getattr(torch, chosen.torch_name)).reshape(tuple(shape))
    if extreme and tensor.dim() and tensor.numel() > 1 and draw(st.booleans()):
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return tensor


def objects(kind: Any) -> st.SearchStrategy[Any]:
    """Values of the Python type of an object column; of ``Any`` plain ones."""
    plain = _concrete(kind)
    return READABLE if plain is str else st.from_type(plain)


def _concrete(kind: Any) -> Any:
    """A type with ``Any`` replaced by a type that prints well."""
    if kind in (Any, object):
        return Literal[0, 1, "a", "b", None]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None or origin in (Literal, typing.Callable):
        return kind
    concrete = tuple(argument if argument is Ellipsis else _concrete(argument) for argument in arguments)
    return kind if concrete == arguments else origin[concrete]


@st.composite
def batches(
    draw: st.DrawFn,
    record: type[BatchT] | st.SearchStrategy[type[BatchT]],
    *,
    b: int | st.SearchStrategy[int] | None = None,
    sizes: Mapping[Any, int] | None = None,
    extreme: bool = True,
    columns: Mapping[str, st.SearchStrategy[Any]] | None = None,
) -> BatchT:
    """Batches of a record class, or of those that a strategy gives, with ``b`` rows (also none).

    ``sizes`` fixes those of its dims.
    Rows of ragged columns may be empty, optional columns absent. ``columns`` are users' strategies for
    columns by their names: of a tensor of the right shape, or of a list.

    Raises:
        WiringError: HF201 if ``columns`` names none of the record.
        DefinitionError: HF921 for what is not a record class.

    >>> import hfdsl as hf
    >>> from hypothesis import find
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> find(batches(Questions), lambda questions: len(questions) > 1).text.objects
    ['', '']
    """
    record = draw(record) if isinstance(record, st.SearchStrategy) else record
    if not (isinstance(record, type) and issubclass(record, Batch)):
        raise refused("batches", "record", "a class derived from hf.Batch", record)
    for name in columns or ():
        if name not in schema(record).fields:
            near = closest(name, list(schema(record).fields))
            raise WiringError("HF201", f"batches: '{record.__name__}' has no column '{name}'; {near}")
    rows = b if b is None or isinstance(b, int) else draw(b)
    bound = draw(dims(record, b=rows, sizes=sizes))
    raw_columns: dict[str, Any] = {}
    for name, spec in schema(record).fields.items():
        if columns is not None and name in columns:
            raw_columns[name] = draw(columns[name])
        elif spec.optional and not draw(st.booleans()):
            raw_columns[name] = None
        elif isinstance(spec, MetricSpec):
            raw_columns[name] = draw(
                st.integers(-100, 100) if spec.type is int else st.integers(-400, 400).map(_quarter)
            )
        else:
            raw_columns[name] = draw(column(spec, tuple(int(evaluate(dim, bound)) for dim in spec.dims), extreme))
    return record(**raw_columns)


def _quarter(number: int) -> float:
    return number / 4


def column(spec: ColumnSpec | ObjSpec, shape: tuple[int, ...], extreme: bool) -> st.SearchStrategy[Any]:
    """The elements of a column of this shape."""
    if isinstance(spec, ObjSpec):
        return st.lists(objects(spec.type), min_size=shape[0], max_size=shape[0])
    if not spec.ragged:
        return tensors(spec.dtype, shape, extreme=extreme)
    lengths = st.lists(st.integers(0, shape[1]), min_size=shape[0], max_size=shape[0])
    return lengths.flatmap(lambda rows: _ragged(spec, rows, shape[2:], extreme))


@st.composite
def _ragged(draw: st.DrawFn, spec: ColumnSpec, lengths: list[int], inner_shape: tuple[int, ...], extreme: bool) -> Any:
    rows = [draw(tensors(spec.dtype, (length, *inner_shape), extreme=extreme)) for length in lengths]
    return Jagged.of(rows) if rows else []
