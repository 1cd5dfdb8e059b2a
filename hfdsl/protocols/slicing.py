"""Slicing: which sizes of a role's model are cut over its mesh's ``tp``.

A role that slices its model has a plain static method ``sliced(...)``, which takes what the constructor takes and gives
these sizes by name. It is asked before there is a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def sliced_sizes(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that ``tp`` divides; none where the role does not say, or cannot.

    >>> class Model:
    ...     @staticmethod
    ...     def sliced(heads: int) -> dict[str, int]:
    ...         return {"heads": heads}
    >>> sliced_sizes(Model, (14,), {}), sliced_sizes(Model, (), {"head": 14}), sliced_sizes(object, (), {})
    ({'heads': 14}, {}, {})
    """
    sliced: Callable[..., Mapping[str, Any]] = getattr(role, "sliced", lambda *_, **__: {})
    try:
        sizes = dict(sliced(*args, **kwargs))
    except Exception:  # noqa: BLE001  # wrong arguments are reported as such, at the check or the launch
        return {}
    return {name: size for name, size in sizes.items() if type(size) is int and size > 0}
