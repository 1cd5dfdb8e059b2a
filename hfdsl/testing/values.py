"""Random column values by row: they depend on the row's position in the batch, and not on how the batch is split."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from hfdsl.errors import WiringError
from hfdsl.protocols.call import Call
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dtypes import Bool, DType, Float64
from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    import torch

INTEGER_LIMIT = 128
"""Integers are below this: tokens of any vocabulary, and values of any dtype."""

STREAM_NUMBER = 3
"""The number that separates the streams of these values from those of ``hf.current_call()``."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws values for the ``rows`` of a call; None without rows."""

    call: Call
    rows: Sequence[int] | None

    def seeds(self, column: int, count: int) -> list[int]:
        """A number for each of ``count`` rows: one for each row of the call, or several for each."""
        rows = self.rows if self.rows and count % len(self.rows) == 0 else range(count)
        per_row = count // len(rows) if rows else 0
        return [self.call.stream_seed(STREAM_NUMBER, column, row, i) for row in rows for i in range(per_row)]

    def column(self, number: int, spec: ColumnSpec, shape: tuple[int, ...]) -> Any:
        """A tensor; of a ragged column rows of random lengths, of truth values runs that are true."""
        import torch

        seeds = self.seeds(number, shape[0])
        if spec.ragged:
            lengths = [1 + seed % shape[1] if shape[1] else 0 for seed in seeds]
            parts = [
                _rows([seed], spec.dtype, (length, *shape[2:]))[0] for seed, length in zip(seeds, lengths, strict=True)
            ]
            return Jagged.of(parts) if parts else Jagged.none(torch.zeros((0, *shape[2:]), dtype=_torch(spec.dtype)))
        if spec.dtype is not Bool:
            return _rows(seeds, spec.dtype, shape[1:])
        if len(shape) == 1:
            return torch.tensor([seed % 4 != 0 for seed in seeds], dtype=torch.bool)
        ends = _rows(seeds, Float64, shape[1:-1]).abs().remainder(1) * shape[-1]
        return torch.arange(shape[-1]) <= ends.unsqueeze(-1)

    def objects(self, number: int, name: str, spec: ObjSpec, count: int) -> list[Any]:
        """An object a row."""
        where = f"column '{name}'"
        return [sample(spec.type, where, seed) for seed in self.seeds(number, count)]

    def metric(self, number: int, spec: MetricSpec) -> Any:
        """A number: the same on all ranks, or a share of every row if ranks' numbers are added.

        Both are multiples of a power of two, so that no order of additions changes their sum.
        """
        if spec.reduction == "sum" and self.rows:
            total = sum(seed % 1024 for seed in self.seeds(number, len(self.rows)))
        else:
            total = self.call.stream_seed(STREAM_NUMBER, number) % 1024
        return total if spec.type is int else total / 2**20


def _torch(dtype: type[DType]) -> torch.dtype:
    import torch

    torch_dtype: torch.dtype = getattr(torch, dtype.torch_name)
    return torch_dtype


def _rows(seeds: Sequence[int], dtype: type[DType], shape: tuple[int, ...]) -> torch.Tensor:
    """A row for each seed: a window of one long table, since drawing every number would take as long as a model."""
    import torch

    width = 1
    for length in shape:
        width *= length
    table = _table(dtype.torch_name, 1 << max(16, width.bit_length() + 1))
    windows = table.as_strided((len(table) - width + 1, width), (1, 1))
    offsets = torch.tensor([seed % len(windows) for seed in seeds], dtype=torch.int64)
    return windows[offsets].view(len(seeds), *shape)


@functools.lru_cache(maxsize=16)
def _table(dtype: str, size: int) -> torch.Tensor:
    import torch

    source, wanted = torch.Generator().manual_seed(size), getattr(torch, dtype)
    if wanted.is_floating_point:
        return torch.randn(size, generator=source).to(wanted)
    return torch.randint(INTEGER_LIMIT, (size,), generator=source).to(wanted)


_PLAIN: dict[Any, Any] = {
    int: lambda seed: seed % INTEGER_LIMIT,
    float: lambda seed: seed % 1024 / 1024,
    bool: lambda seed: seed % 2 == 0,
    str: lambda seed: f"text {seed % 1000}",
    bytes: lambda seed: seed.to_bytes(8, "big"),
    type(None): lambda seed: None,
    None: lambda seed: None,
    Any: lambda seed: None,
    object: lambda seed: None,
}


def sample(kind: Any, where: str, seed: int = 0) -> Any:
    """A value of a Python type: empty lists and dicts, and of a dataclass one with its defaults.

    Raises:
        WiringError: HF206 for a type without a known value.

    >>> sample(tuple[int, dict[str, float]], "a column", seed=7)
    (7, {})
    """
    if kind in _PLAIN:
        return _PLAIN[kind](seed)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[0], where, seed)
    if origin is typing.Literal:
        return arguments[seed % len(arguments)]
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return tuple(sample(argument, where, seed) for argument in arguments)
    container = origin or kind
    if container in (list, dict, tuple, set, frozenset):
        return container()
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        needed = [f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
        return kind(**{name: sample(hints[name], where, seed) for name in needed})
    shown = getattr(kind, "__name__", kind)
    raise WiringError(
        "HF206", f"a fake knows no value of {shown} for {where}; give one: columns={{name: lambda shape: [...]}}"
    )
