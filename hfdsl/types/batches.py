"""Batches: closed, nominal records of columns; one row dim for all of them."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard, TypeVar, dataclass_transform, runtime_checkable

from hfdsl.errors import DefinitionError, SizeError, WiringError
from hfdsl.types.column_annotations import field_spec
from hfdsl.types.columns import COLUMNS, ColumnSpec, FieldSpec, Metric, MetricSpec, Obj, ObjSpec
from hfdsl.types.dims import Size, constant, solve
from hfdsl.types.joining import all_present, join_column
from hfdsl.types.similar_names import closest
from hfdsl.types.values import actual, plain

NameT = TypeVar("NameT")
BatchT = TypeVar("BatchT", bound="Batch")


SHAPES = 256
"""The number of validated sets of shapes that a record class caches."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a record in declared order, and the row dim that they share (None for a record of metrics).

    ``spare`` are the optional columns declared with ``= None``, which a constructor call may leave out.
    """

    fields: Mapping[str, FieldSpec]
    row: Size | None
    spare: frozenset[str] = frozenset()
    shapes: set[tuple[Any, ...]] = field(default_factory=set, compare=False)  # of columns that fitted together


@runtime_checkable
class SymbolicColumn(Protocol):
    """A column of a dataflow that is being traced; a record built from one is built in the trace."""

    def __hf_pack__(self, record: type[Batch], columns: Mapping[str, Any]) -> Any:
        """The symbolic record of class ``record`` with these columns."""


class _Field:
    """Reads a column of a record as ``Column``, ``Obj`` or ``Metric``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, record: Batch | None, owner: type[Batch]) -> Any:
        if record is None:
            return schema(owner).fields[self.name]
        return wrap_field(schema(owner).fields[self.name], record.__hf_columns__[self.name])

    def __set__(self, record: Batch, value: object) -> None:
        raise WiringError(
            "HF206", f"'{type(record).__name__}.{self.name}' cannot be set: a record never changes; build a new one"
        )


@dataclass_transform(kw_only_default=True)
class Batch:
    """A closed record of columns with one row dim; subclasses declare the columns.

    Records are nominal: two classes with the same columns are different types. Building one checks dtypes, row counts
    and dims.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> questions = Questions(text=["6*7", "1+1"])
    >>> len(questions), questions[1:].text.objects
    (2, ['1+1'])

    A column declared ``f32[B, R] | None`` is present for all rows or for none; with ``= None`` it may be omitted.

    Raises:
        DefinitionError: HF104, HF115, HF117 for a declaration that is not a record of columns with one row dim.
        WiringError: HF201 unknown column, HF202 column without its name, HF203 missing column, HF210 shape, HF220
            dtype, HF231 absent column.
    """

    __hf_columns__: dict[str, Any]
    __hf_schema__: typing.ClassVar[Schema]
    __hf_spare__: typing.ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotations = inspect.get_annotations(cls)
        cls.__hf_spare__ = frozenset(name for name in annotations if vars(cls).get(name, cls) is None)
        for name in annotations:
            if name in vars(cls) and name not in cls.__hf_spare__:
                raise _of_column(
                    name,
                    "HF117",
                    f"column '{name}' of '{cls.__name__}' has the default {vars(cls)[name]!r}; a record is closed: the "
                    "only default is None, of an optional column",
                )
            setattr(cls, name, _Field(name))
        frame = sys._getframe(1)  # the class statement: the only place that sees dims defined within a function
        names = {**frame.f_globals, **frame.f_locals}
        try:
            cls.__annotations__ = {n: _evaluate(a, names) for n, a in annotations.items()}
        except NameError:
            return  # text that names what is defined further down; it is read at first use
        schema(cls)

    if not TYPE_CHECKING:  # its result would make a record Any for a type checker

        def __new__(cls, *args: Any, **columns: Any) -> Any:
            """A record, or a symbolic one where a column belongs to a dataflow that is being traced."""
            if args:
                named = ", ".join(f"{name}=..." for name in schema(cls).fields)
                raise WiringError("HF202", f"'{cls.__name__}' takes its columns by name: {cls.__name__}({named})")
            for value in columns.values():
                if hasattr(type(value), "__hf_pack__"):  # a SymbolicColumn; isinstance of a protocol is slow
                    return value.__hf_pack__(cls, columns)
            return super().__new__(cls)

    def __init__(self, **columns: Any) -> None:
        declared = schema(type(self)).fields
        _check_names(type(self), schema(type(self)), columns)
        object.__setattr__(
            self, "__hf_columns__", {n: plain(type(self), n, columns.get(n), declared[n]) for n in declared}
        )
        _check_shapes(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise WiringError(
            "HF206", f"'{type(self).__name__}.{name}' cannot be set: a record never changes; build a new one"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), own_rows(self.__hf_columns__))

    def __len__(self) -> int:
        return self.__hf_rows__()

    def __getitem__(self: BatchT, rows: slice) -> BatchT:
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise WiringError(
                "HF206", f"'{type(self).__name__}' takes slices of consecutive rows, got [{_slice_text(rows)}]"
            )
        start, stop, _ = rows.indices(len(self))
        return self.__hf_slice__(start, max(start, stop))

    def __repr__(self) -> str:
        fields = schema(type(self)).fields
        columns = [f"{name}: {actual(value, fields[name])}" for name, value in self.__hf_columns__.items()]
        return f"{type(self).__name__}({', '.join(columns)})"

    def _repr_html_(self) -> str:
        """For notebooks: each column with its declaration and value."""
        from hfdsl.types.html import table  # not at the top: `import hfdsl` is kept fast

        fields = schema(type(self)).fields
        rows = [(name, fields[name], actual(value, fields[name])) for name, value in self.__hf_columns__.items()]
        return table(type(self).__name__, ("column", "declared", "holds"), rows)

    # -- the interface by which protocols split and join rows

    def __hf_rows__(self) -> int:
        """The number of rows; HF413 for a record of metrics, which are not split."""
        for name, spec in schema(type(self)).fields.items():
            if spec.dims and not spec.optional:
                return len(self.__hf_columns__[name])
        raise SizeError("HF413", f"'{type(self).__name__}' holds metrics only: it has no rows to count, split or slice")

    def __hf_slice__(self: BatchT, start: int, stop: int) -> BatchT:
        """The rows ``start`` to ``stop``; tensors are views, object lists are new."""
        fields = schema(type(self)).fields
        cut = {n for n, v in self.__hf_columns__.items() if fields[n].dims and v is not None}
        return rebuild(type(self), {n: v[start:stop] if n in cut else v for n, v in self.__hf_columns__.items()})

    @classmethod
    def __hf_concat__(cls: type[BatchT], parts: Sequence[BatchT]) -> BatchT:
        """Join the rows of ``parts`` in order; metrics are reduced."""
        same_columns(parts, [f"part {number}" for number in range(len(parts))])
        return rebuild(
            cls, {n: join_column(s, [p.__hf_columns__[n] for p in parts]) for n, s in schema(cls).fields.items()}
        )


def wrap_field(spec: FieldSpec, raw: Any) -> Any:
    """A raw value as a body sees it: tensor, list or number, wrapped in the class of its type; None if absent."""
    return None if raw is None and spec.optional else _wrapped(spec, raw)


def _wrapped(spec: FieldSpec, raw: Any) -> Any:
    if isinstance(spec, ColumnSpec):
        return COLUMNS[spec.dtype](raw)
    return Obj(raw) if isinstance(spec, ObjSpec) else Metric(raw)


def same_columns(parts: Sequence[Any], producers: Sequence[str]) -> None:
    """Refuse parts if only some have a column; ``producers`` names the origin of each.

    Raises:
        WiringError: HF810 naming the column and the producers.
    """
    records = [part for part in parts if isinstance(part, Batch)]
    for name in records[0].__hf_columns__ if records else ():
        all_present(
            f"column '{name}' of '{type(records[0]).__name__}'",
            [r.__hf_columns__.get(name) for r in records],
            producers,
        )


def schema(record: type[Batch]) -> Schema:
    """The declared columns of a record class, those of its bases first.

    Raises:
        DefinitionError: HF104, HF109, HF115, HF117; HF104 also for a column that two bases declare differently.
    """
    if "__hf_schema__" in record.__dict__:
        own_schema: Schema = record.__dict__["__hf_schema__"]  # its own: a base's has fewer columns
        return own_schema
    fields: dict[str, FieldSpec] = {}
    declared: dict[str, list[_Declared]] = {}
    spare: set[str] = set()
    row: Size | None = None
    for base in reversed(record.__mro__):
        if base is Batch or not issubclass(base, Batch):
            continue
        module = sys.modules.get(base.__module__)
        names = {**(vars(module) if module else {}), **vars(base)}
        for name, written in inspect.get_annotations(base).items():
            where = f"column '{name}' of '{base.__name__}'"
            try:
                spec = field_spec(_evaluate(written, names), where)
            except NameError as error:
                message = f"{where}: cannot evaluate '{written}' ({error}); define its dims at module level"
                raise _of_column(name, "HF109", message) from None
            except DefinitionError as error:
                error.column = name
                raise
            fields[name] = spec
            declared.setdefault(name, []).append(_Declared(base, spec, name in base.__hf_spare__))
            spare -= {name}
            if name in base.__hf_spare__:
                spare.add(name)
                if not spec.optional:
                    raise _of_column(name, "HF117", f"{where} is {spec}, which is never None, and has the default None")
            if spec.dims and row is None:
                row = spec.dims[0]
            if not isinstance(spec, MetricSpec) and (not spec.dims or spec.dims[0] != row):
                shown = spec.dims[0] if spec.dims else "none"
                raise _of_column(name, "HF115", f"{where} has row dim {shown}, other columns of the record have {row}")
    _refuse_two_types(record, declared)
    if row is not None and all(spec.optional for spec in fields.values() if spec.dims):
        raise DefinitionError(
            "HF117",
            f"every column of '{record.__name__}' is optional: one must be present, for its number of rows",
        )
    record.__hf_schema__ = Schema(fields, row, frozenset(spare))
    return record.__hf_schema__


class _Declared(NamedTuple):
    """The declaration of a column in a record, and whether a constructor call may leave it out."""

    record: type[Batch]
    spec: FieldSpec
    spare: bool

    def __str__(self) -> str:
        return f"'{self.record.__name__}' declares {self.spec}{' = None' if self.spare else ''}"


def _refuse_two_types(record: type[Batch], declared: Mapping[str, Sequence[_Declared]]) -> None:
    """HF104 for a column that bases declare differently, unless a record derived from both declares it."""
    for column, declarations in declared.items():
        *others, last = [d for d in declarations if not any(_overrides(other, d) for other in declarations)]
        for other in others:
            if (other.spec, other.spare) != (last.spec, last.spare):
                message = f"column '{column}' of '{record.__name__}' has two types: {last}, {other}"
                raise _of_column(column, "HF104", f"{message}; declare it in '{record.__name__}'")


def _overrides(declaration: _Declared, other: _Declared) -> bool:
    return declaration is not other and issubclass(declaration.record, other.record)


def _of_column(column: str, code: str, message: str) -> DefinitionError:
    """An error about the declaration of a column, at whose line it is reported."""
    error = DefinitionError(code, message)
    error.column = column
    return error


def _evaluate(annotation: object, names: Mapping[str, Any]) -> object:
    """An annotation as an object; text is evaluated as ``typing.get_type_hints`` does."""
    return eval(annotation, dict(names)) if isinstance(annotation, str) else annotation


def rebuild(record: type[BatchT], columns: dict[str, Any]) -> BatchT:
    """Build a record from valid columns."""
    batch = object.__new__(record)
    object.__setattr__(batch, "__hf_columns__", columns)
    return batch


def own_rows(columns: Mapping[NameT, Any]) -> dict[NameT, Any]:
    """Copy views, so that every tensor owns exactly its rows: pickling a view would pickle its whole storage."""
    return {name: value.clone() if _is_view(value) else value for name, value in columns.items()}


def _is_view(value: Any) -> bool:
    return hasattr(value, "untyped_storage") and value.untyped_storage().nbytes() > value.nbytes


def upcast(batch: Batch, record: type[BatchT]) -> BatchT:
    """Reduce a record to the columns that its base class ``record`` declares."""
    if type(batch) is record:
        return batch
    return rebuild(record, {name: batch.__hf_columns__[name] for name in schema(record).fields})


def is_record(value: object) -> TypeGuard[type[Batch]]:
    """Whether a value is a class of records, and not a record.

    >>> class Scores(Batch): ...
    >>> is_record(Scores), is_record(Batch()), is_record("Scores")
    (True, False, False)
    """
    return isinstance(value, type) and issubclass(value, Batch)


def _check_names(record: type[Batch], declared: Schema, columns: Mapping[str, Any]) -> None:
    fields = declared.fields
    for name in columns:
        if name not in fields:
            raise WiringError("HF201", f"'{record.__name__}' has no column '{name}'; {closest(name, list(fields))}")
    missing = [name for name in fields if name not in columns and name not in declared.spare]
    if missing:
        raise WiringError("HF203", f"'{record.__name__}' is built without its column(s) {', '.join(missing)}")


def _check_shapes(batch: Batch) -> None:
    """Check that every dim has one size within a record, with a cache, since steps repeat shapes."""
    cache, columns = schema(type(batch)).shapes, batch.__hf_columns__.values()
    shapes = tuple(None if v is None else tuple(v.shape) if hasattr(v, "shape") else _rows(v) for v in columns)
    if shapes not in cache:
        _fit_together(batch)
        if len(cache) < SHAPES:
            cache.add(shapes)


def _rows(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _fit_together(batch: Batch) -> None:
    """Bind dims to lengths, solving compound expressions where they are linear, and compare all lengths."""
    pending = [
        (name, i, dim, len(batch.__hf_columns__[name]) if i == 0 else int(batch.__hf_columns__[name].shape[i]))
        for name, spec in schema(type(batch)).fields.items()
        for i, dim in enumerate(spec.dims)
        if batch.__hf_columns__[name] is not None
    ]
    bound: dict[Any, Size] = {}
    origin: dict[Any, str] = {}
    pending.sort(key=lambda entry: len(entry[2].atoms))  # plain dims bind first, whatever the order of declaration
    ragged = {n for n, spec in schema(type(batch)).fields.items() if isinstance(spec, ColumnSpec) and spec.ragged}
    pending.sort(key=lambda entry: entry[0] in ragged and entry[1] == 1)  # a bound binds nothing
    for name, position, dim, length in pending:
        bounded = name in ragged and position == 1
        for atom, value in (solve(dim, constant(length), bound) or {} if not bounded else {}).items():
            bound[atom], origin[atom] = value, name
        if any(atom not in bound for atom in dim.atoms):
            continue
        expected = dim.substitute(bound)
        if expected != constant(length) and not (bounded and (expected.value or 0) >= length):
            spec = schema(type(batch)).fields[name]
            got = f"{actual(batch.__hf_columns__[name], spec)}: dim {position} is {length} where {dim} = {expected}"
            why = ", ".join(f"{atom.__name__}={bound[atom]} from '{origin[atom]}'" for atom in dim.atoms)
            raise WiringError(
                "HF210", f"column '{name}' of '{type(batch).__name__}' is declared {spec} and got {got} ({why})"
            )


def _slice_text(rows: object) -> str:
    parts = (rows.start, rows.stop, rows.step) if isinstance(rows, slice) else (rows,)
    return ":".join("" if part is None else repr(part) for part in parts)
