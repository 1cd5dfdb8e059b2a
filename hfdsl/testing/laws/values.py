"""Test values for a protocol: numbered rows, in each kind of container that has rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from hfdsl.rl.batches import B, R
from hfdsl.types.batches import Batch, rebuild
from hfdsl.types.columns import Obj, f32, i64
from hfdsl.types.ragged import Jagged, Ragged


class Numbered(Batch):
    """Rows that each say their number in every column."""

    number: i64[B]
    name: Obj[str, B]
    tokens: i64[B, Ragged[R]]
    weight: f32[B] | None = None


@dataclass(frozen=True, slots=True)
class ContainerKind:
    """A kind of container: how to make one of numbered rows, and how to read the numbers back.

    ``whole`` says what is wrong with a value besides its numbers: another type or dtype, a lost column, a row whose
    columns are those of several; None if nothing is.
    """

    name: str
    make: Callable[[Sequence[int]], Any]
    read: Callable[[Any], list[int]]
    whole: Callable[[Any], str | None]

    def __reduce__(self) -> tuple[object, ...]:
        return (_kind, (self.name,))  # with a failure, to another process


def _record(rows: Sequence[int]) -> Numbered:
    import torch

    tokens = [row for row in rows for _ in range(row % 3)]
    edges = list(accumulate((row % 3 for row in rows), initial=0))
    columns = {  # known to be right: these are made by the thousand
        "number": torch.tensor(rows, dtype=torch.int64),
        "name": [f"row {row}" for row in rows],
        "tokens": Jagged(torch.tensor(tokens, dtype=torch.int64), torch.tensor(edges)),
        "weight": torch.tensor(rows, dtype=torch.float32),
    }
    return rebuild(Numbered, columns)


def _whole_record(value: Any) -> str | None:
    if type(value) is not Numbered:
        return f"a {type(value).__name__} where a record was given"
    numbers = value.number.tensor.tolist()
    if value.weight is None:
        return "column 'weight' is lost"
    for row, name, tokens, weight in zip(
        numbers, value.name.objects, value.tokens.rows, value.weight.tensor.tolist(), strict=True
    ):
        if name != f"row {row}":
            return f"row {row} has the object of {name}"
        if tokens.tolist() != [row] * (row % 3):
            return f"row {row} has the tokens {tokens.tolist()}, which are another row's"
        if weight != row:
            return f"row {row} has the weight of row {weight:g}"
    return None


def _whole_list(value: Any) -> str | None:
    if not isinstance(value, list):
        return f"a {type(value).__name__} where a list was given"
    foreign = next((row for row in value if type(row) is not int), None)
    return None if foreign is None else f"the row {foreign!r}, which was a plain number"


def _tensor(rows: Sequence[int]) -> Any:
    import torch

    return torch.tensor([[row, row] for row in rows], dtype=torch.int32).reshape(-1, 2)


def _whole_tensor(value: Any) -> str | None:
    torch: Any = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} where a tensor was given"
    if value.dtype is not torch.int32 or value.dim() != 2:
        return f"a tensor {value.dtype} of {value.dim()} dims where torch.int32 of 2 was given"
    return None if torch.equal(value[:, 0], value[:, 1]) else "a tensor whose rows are mixed up within"


def _array(rows: Sequence[int]) -> Any:
    import numpy as np

    return np.array(list(rows), dtype=np.int32)


def _whole_array(value: Any) -> str | None:
    numpy: Any = sys.modules["numpy"]
    if not isinstance(value, numpy.ndarray):
        return f"a {type(value).__name__} where an array was given"
    return None if value.dtype == numpy.int32 else f"an array of {value.dtype} where int32 was given"


LIST = ContainerKind("list", list, lambda value: [int(row) for row in value], _whole_list)
TENSOR = ContainerKind("tensor", _tensor, lambda value: [int(row) for row in value[:, 0].tolist()], _whole_tensor)
ARRAY = ContainerKind("array", _array, lambda value: [int(row) for row in value.tolist()], _whole_array)
RECORD = ContainerKind(
    "record", _record, lambda value: [int(row) for row in value.number.tensor.tolist()], _whole_record
)

_NEEDS = ((LIST, ""), (RECORD, "torch"), (TENSOR, "torch"), (ARRAY, "numpy"))


def kinds() -> tuple[ContainerKind, ...]:
    """The kinds of container whose libraries are installed, the simplest first."""
    return tuple(kind for kind, library in _NEEDS if not library or find_spec(library))


def _kind(name: str) -> ContainerKind:
    return next(kind for kind, _ in _NEEDS if kind.name == name)
