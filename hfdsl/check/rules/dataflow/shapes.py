"""Shapes: messages for the ways in which shapes and dtypes often differ."""

from __future__ import annotations

from hfdsl.graph.values import Mismatch, MismatchKind
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Atom, Size, constant
from hfdsl.types.dtypes import Bool, DType, Int8, Int16, Int32, Int64, UInt8

INTEGERS: frozenset[type[DType]] = frozenset({Int8, Int16, Int32, Int64, UInt8})


def dtypes(wired: str, m: Mismatch) -> tuple[str, str, tuple[str, ...]]:
    """For two dtypes: as an index, a mask of truth values and one of numbers select different rows or tokens."""
    named = m.formal.dtype.torch_name if isinstance(m.formal, ColumnSpec) else m.formal
    advice: tuple[str, ...] = (f"convert it where it is produced, .to(torch.{named}), and declare that dtype there",)
    pair = {spec.dtype for spec in (m.formal, m.actual) if isinstance(spec, ColumnSpec)}
    if Bool in pair and pair & INTEGERS:
        return "HF221", f"{wired}: booleans select, integers count or index", advice
    if isinstance(m.actual, ColumnSpec) and m.actual.dtype not in INTEGERS and pair & (INTEGERS | {Bool}):
        advice = ()  # numbers with a fraction for a mask or an index: another column is meant, no conversion
    return "HF220", wired, advice


def ranks(wired: str, m: Mismatch) -> tuple[str, str, tuple[str, ...]]:
    """For two numbers of dims: a trailing 1 is the one difference that arithmetic does not notice."""
    if isinstance(m.formal, ColumnSpec) and isinstance(m.actual, ColumnSpec):
        short, long = sorted((m.formal, m.actual), key=lambda spec: len(spec.dims))
        if len(long.dims) == len(short.dims) + 1 and long.dims[-1] == constant(1):
            short_shape = f"[{', '.join(map(str, short.dims))}]"
            change = (
                "drop it where it is produced, .squeeze(-1)"
                if long is m.actual
                else "add it where it is produced, .unsqueeze(-1)"
            )
            return (
                "HF215",
                f"{wired}: a trailing dim of 1 broadcasts against {short_shape} instead of failing",
                (f"{change}, and declare that shape there",),
            )
    return "HF210", f"{wired}: the number of dims differs", ()


def notes(m: Mismatch) -> tuple[str, ...]:
    """The difference of two lengths, and dims that only look the same."""
    if not m.sizes:
        return ()
    want, have = m.sizes
    gap, twins = have - want, _twins(want, have)
    if m.kind is not MismatchKind.DIM or twins or not want.atoms or not have.atoms:
        return twins
    if all(coefficient > 0 for _, coefficient in gap.terms):
        return (f"{have} is longer than {want} by {gap}",)
    if all(coefficient < 0 for _, coefficient in gap.terms):
        return (f"{have} is shorter than {want} by {want - have}",)
    return ()


def _twins(want: Size, have: Size) -> tuple[str, ...]:
    """Different dims of one name: without this, the message would read as if nothing were wrong."""
    return tuple(
        f"these are two dims named {atom.__name__}, {_path(atom)} and {_path(actual)}: define it once and import it"
        for atom in want.atoms
        for actual in have.atoms
        if atom is not actual and atom.__name__ == actual.__name__
    )


def _path(atom: Atom) -> str:
    name = getattr(atom, "__qualname__", atom.__name__)
    kind = "" if isinstance(atom, type) else "the TypeVar "
    return f"{kind}{getattr(atom, '__module__', '?')}.{name}"
