"""Fused parameters: matrices that one role has in one parameter, and another role in several ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hfdsl.protocols.layouts import Parameter


def fused_elsewhere(missing: Sequence[Parameter], unread: Iterable[Parameter]) -> str | None:
    """How a role has the matrices of missing parameters, among those that no role loads from it; None if it has none.

    Matrices are fused along their rows, in the same module: the first missing parameter and its neighbors have as many
    rows as a parameter that is exported, or the other way round.

    >>> gate, up, both = (Parameter(f"mlp.{name}.weight", (rows, 4)) for name, rows in (("g", 6), ("u", 6), ("gu", 12)))
    >>> fused_elsewhere([gate, up], [both])
    "'mlp.gu.weight', which has as many rows as 'mlp.g.weight', 'mlp.u.weight'"
    >>> fused_elsewhere([both], [gate, up])
    "'mlp.g.weight', 'mlp.u.weight', which have as many rows as 'mlp.gu.weight'"
    """
    first = missing[0]
    if not first.shape:
        return None
    parts = [parameter for parameter in missing if _are_neighbors(first, parameter)]
    others = [parameter for parameter in unread if _are_neighbors(first, parameter)]
    fused = next((other for other in others if len(parts) > 1 and _rows(parts) == other.shape[0]), None)
    if fused is not None:
        return f"{fused.name!r}, which has as many rows as {_names(parts)}"
    if len(others) > 1 and _rows(others) == first.shape[0]:
        return f"{_names(others)}, which have as many rows as {first.name!r}"
    return None


def _are_neighbors(first: Parameter, other: Parameter) -> bool:
    """Whether parameters are of one kind, in modules beside each other, and may be fused along their rows."""
    (*path, _, kind), (*other_path, _, other_kind) = (["", *each.name.split(".")] for each in (first, other))
    return (path, kind, first.shape[1:]) == (other_path, other_kind, other.shape[1:]) and len(other.shape) > 0


def _rows(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.shape[0] for parameter in parameters)


def _names(parameters: Iterable[Parameter]) -> str:
    return ", ".join(repr(parameter.name) for parameter in parameters)
