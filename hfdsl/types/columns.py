"""Columns: ``dtype[dims]``, ``Obj[T, B]``, ``Metric[T, Literal["mean"]]``; as types, and as values at run time."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
)

from hfdsl.errors import DefinitionError, WiringError
from hfdsl.types.dims import Size
from hfdsl.types.dtypes import (
    BFloat16,
    Bool,
    DType,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
)
from hfdsl.types.ragged import Jagged, jagged_of
from hfdsl.types.wrappers import Wrapper

if TYPE_CHECKING:
    import torch

D = TypeVar("D", bound=DType, covariant=True)
Sh = TypeVarTuple("Sh")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Row = TypeVar("Row", covariant=True)
Reduction = TypeVar("Reduction", covariant=True)


class Column(Wrapper, Generic[D, *Sh]):
    """A tensor with a dtype and named dims; ``.tensor`` is the raw tensor, for the body of a role.

    A ragged column is made from a list with one tensor per row, or from a jagged nested tensor.

    Deliberately not a subclass of ``torch.Tensor``: in a dataflow a column can be passed on, not computed with, and a
    type checker sees that even where torch is not installed.
    """

    __slots__ = ("__orig_class__", "_value")
    holds = "tensor"
    dtype: ClassVar[type[DType]]

    def __init__(self, value: torch.Tensor | Sequence[torch.Tensor]) -> None:
        rows = None
        if not hasattr(value, "untyped_storage") or getattr(value, "is_nested", False):
            rows = jagged_of(value, lambda: empty_values(self.dtype, 1))
        self._value: Any = value if rows is None else rows

    @property
    def tensor(self) -> torch.Tensor:
        """The raw tensor: this rank's rows; of a ragged column, a jagged nested tensor."""
        return self._value.nested if isinstance(self._value, Jagged) else self._value

    @property
    def rows(self) -> list[torch.Tensor]:
        """A tensor for each of this rank's rows."""
        return self._value.rows if isinstance(self._value, Jagged) else list(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._value!r})"

    if TYPE_CHECKING:  # a column in a record: read as a column, given as a tensor or as a column of the same type

        def __get__(self, record: object, owner: Any = None) -> Self: ...
        def __set__(self, record: object, value: torch.Tensor | Column[D, *Sh]) -> None: ...


def empty_values(dtype: type[DType], dims: int) -> torch.Tensor:
    """No values of a dtype."""
    import torch

    return torch.zeros((0,) * dims, dtype=getattr(torch, dtype.torch_name))


class f64(Column[Float64, *Sh]):
    """64-bit floating point."""

    __slots__ = ()
    dtype = Float64


class f32(Column[Float32, *Sh]):
    """32-bit floating point."""

    __slots__ = ()
    dtype = Float32


class bf16(Column[BFloat16, *Sh]):
    """16-bit brain floating point."""

    __slots__ = ()
    dtype = BFloat16


class f16(Column[Float16, *Sh]):
    """16-bit floating point."""

    __slots__ = ()
    dtype = Float16


class i64(Column[Int64, *Sh]):
    """64-bit signed integers."""

    __slots__ = ()
    dtype = Int64


class i32(Column[Int32, *Sh]):
    """32-bit signed integers."""

    __slots__ = ()
    dtype = Int32


class i16(Column[Int16, *Sh]):
    """16-bit signed integers."""

    __slots__ = ()
    dtype = Int16


class i8(Column[Int8, *Sh]):
    """8-bit signed integers."""

    __slots__ = ()
    dtype = Int8


class u8(Column[UInt8, *Sh]):
    """8-bit unsigned integers."""

    __slots__ = ()
    dtype = UInt8


class bool_(Column[Bool, *Sh]):
    """Truth values, one byte each."""

    __slots__ = ()
    dtype = Bool


COLUMNS: dict[type[DType], type[Column[Any, *tuple[Any, ...]]]] = {
    column.dtype: column for column in (f64, f32, bf16, f16, i64, i32, i16, i8, u8, bool_)
}
"""The column class of a dtype."""


class Obj(Wrapper, Generic[T, Row]):
    """One Python object per row: ``Obj[str, B]``; ``.objects`` is the list."""

    __slots__ = ("_value",)
    holds = "objects"

    if not TYPE_CHECKING:  # a type checker counts them by itself

        def __class_getitem__(cls, parameters: Any) -> Any:
            try:
                return super().__class_getitem__(parameters)
            except TypeError:
                raise DefinitionError("HF104", "Obj takes the type of an object and the row dim: Obj[str, B]") from None

    def __init__(self, value: Sequence[T]) -> None:
        self._value = list(value)

    @property
    def objects(self) -> list[T]:
        """The objects of this rank's rows, in a list of the caller's own."""
        return list(self._value)

    def __repr__(self) -> str:
        return f"Obj({self._value!r})"

    if TYPE_CHECKING:

        def __get__(self, record: object, owner: Any = None) -> Obj[T, Row]: ...
        def __set__(self, record: object, value: Sequence[T] | Obj[T, Row]) -> None: ...


def number(value: Any, where: str) -> Any:
    """The plain number that a metric holds; of a tensor, its one element.

    Raises:
        WiringError: HF206 naming the metric, for a value that is not one number.
    """
    if hasattr(value, "item"):
        count = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
        if count != 1:
            raise WiringError(
                "HF206", f"{where} takes one number, got {count} in a value of type {type(value).__name__}; reduce it"
            )
        value = value.item()
    if not isinstance(value, Number):
        got = "None" if value is None else f"the {type(value).__name__} {reprlib.repr(value)}"
        raise WiringError("HF206", f"{where} takes a number, got {got}")
    return value


class Metric(Wrapper, Generic[T_co, Reduction]):
    """A number that ranks reduce when it is collected: ``Metric[float, Literal["mean"]]``.

    Reductions: ``mean sum max min first last``, over the collected ranks in collect order.

    >>> Metric(0.5).value
    0.5
    """

    __slots__ = ("_value",)
    holds = "value"

    if not TYPE_CHECKING:  # as above

        def __class_getitem__(cls, parameters: Any) -> Any:
            try:
                return super().__class_getitem__(parameters)
            except TypeError:
                text = 'Metric takes the type of a number and a reduction: Metric[float, Literal["mean"]]'
                raise DefinitionError("HF116", text) from None

    def __init__(self, value: T_co) -> None:
        self._value: T_co = number(value, "hf.Metric")

    @property
    def value(self) -> T_co:
        """The number."""
        return self._value

    def __repr__(self) -> str:
        return f"Metric({self._value!r})"

    if TYPE_CHECKING:

        def __get__(self, record: object, owner: Any = None) -> Metric[T_co, Reduction]: ...
        def __set__(self, record: object, value: T_co | Metric[T_co, Reduction]) -> None: ...


# math.fsum makes sum and mean independent of the order in which ranks report.
REDUCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "sum": lambda values: sum(values) if all(isinstance(v, int) for v in values) else math.fsum(values),
    "max": max,
    "min": min,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


@dataclass(frozen=True, slots=True)
class Finite:
    """The type of ``hf.finite``, the mark of a column whose values are all finite."""


finite = Finite()
"""Declares that a column has no NaN and no infinity, ``Annotated[f32[B], hf.finite]``; a run verifies it."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A declared tensor column: dtype and dims in normal form, row dim first; an optional one may be absent.

    In a ragged one, the dim after the rows is the most that a row may have. ``quotients`` are the ``Div``s in the dims.
    A ``finite`` one has no NaN and no infinity, which only a run can test.
    """

    dtype: type[DType]
    dims: tuple[Size, ...]
    optional: bool = False
    ragged: bool = False
    quotients: tuple[Size, ...] = field(default=(), compare=False, repr=False)
    finite: bool = field(default=False, compare=False, repr=False)

    def __str__(self) -> str:
        dims = [f"~{dim}" if self.ragged and i == 1 else str(dim) for i, dim in enumerate(self.dims)]
        return f"{self.dtype.name}[{', '.join(dims)}]{' | None' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class ObjSpec:
    """A declared object column: the Python type of one row's object, and the row dim; an optional one may be absent."""

    type: Any
    row: Size
    optional: bool = False
    quotients: tuple[Size, ...] = field(default=(), compare=False, repr=False)

    @property
    def dims(self) -> tuple[Size, ...]:
        """The row dim alone."""
        return (self.row,)

    def __str__(self) -> str:
        return f"Obj[{getattr(self.type, '__name__', self.type)}, {self.row}]{' | None' if self.optional else ''}"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A declared metric: the Python type of the number and the name of its reduction."""

    type: Any
    reduction: str

    @property
    def dims(self) -> tuple[Size, ...]:
        """A metric has no rows."""
        return ()

    @property
    def optional(self) -> bool:
        """A metric is always there: ranks reduce what all of them give."""
        return False

    def __str__(self) -> str:
        return f'Metric[{getattr(self.type, "__name__", self.type)}, "{self.reduction}"]'


FieldSpec: TypeAlias = ColumnSpec | ObjSpec | MetricSpec
