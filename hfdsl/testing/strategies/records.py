"""Random record classes as source text, ready to paste."""

from __future__ import annotations

from typing import Any

from hypothesis import note
from hypothesis import strategies as st

from hfdsl.testing.arguments import number_of
from hfdsl.testing.strategies.graphs import load
from hfdsl.types.batches import Batch
from hfdsl.types.dtypes import DTYPES

HEAD = """
from typing import Literal
import hfdsl as hf
from hfdsl.testing.sample_roles import B, P, R

class Drawn(hf.Batch):
"""

LENGTHS = ("P", "R", "hf.Add[P, R]", "hf.Mul[R, Literal[2]]", "hf.Div[P, Literal[3]]")
OBJECTS = ("str", "int", "list[int]", "dict[str, float]")
METRICS = ("hf.Metric[float, Literal['mean']]", "hf.Metric[int, Literal['sum']]")


@st.composite
def records(draw: st.DrawFn, *, max_columns: int = 5) -> type[Batch]:
    """Record classes of at most ``max_columns`` columns: of every dtype, ragged, of objects, optional; and metrics.

    A failing example is printed with the source of its class. ``batches(records())`` are batches of any class.

    >>> from hypothesis import find
    >>> found = find(records(), lambda record: len(record.__annotations__) == 2)
    >>> issubclass(found, Batch), list(found.__annotations__)
    (True, ['a', 'b'])
    """
    number_of("records", "max_columns=", max_columns)
    row = draw(st.sampled_from(("B", "hf.Mul[B, Literal[2]]")))
    always = _column(row)  # without one the number of rows would be unknown
    kinds = always | always.map(lambda kind: f"{kind} | None") | st.sampled_from(METRICS)
    columns = [draw(always), *draw(st.lists(kinds, max_size=max_columns - 1))]
    lines = [f"    {name}: {kind}\n" for name, kind in zip("abcdefghijklmnopqrstuvwxyz", columns, strict=False)]
    source = HEAD + "".join(lines)
    note(source.strip())
    drawn_class: Any = load(source)["Drawn"]
    record: type[Batch] = drawn_class
    return record


@st.composite
def _column(draw: st.DrawFn, row: str) -> str:
    dtype = draw(st.sampled_from([dtype.name for dtype in DTYPES]))
    lengths = ", ".join([row, *draw(st.lists(st.sampled_from(LENGTHS), max_size=2))])
    kinds = (
        f"hf.{dtype}[{lengths}]",
        f"hf.{dtype}[{row}, hf.Ragged[R]]",
        f"hf.Obj[{draw(st.sampled_from(OBJECTS))}, {row}]",
    )
    return draw(st.sampled_from(kinds))
