"""What hypothesis calls when it is imported: ``st.from_type`` knows the types of hfdsl, and examples print as code.

It loads nothing of hfdsl before such a type is asked for.
"""

from __future__ import annotations

import sys
from typing import Any

CODE = {
    "hfdsl.types.batches": ("Batch",),
    "hfdsl.types.columns": ("Column", "Obj"),
    "hfdsl.types.ragged": ("Jagged",),
    "hfdsl.protocols.mesh": ("Mesh",),
    "hfdsl.deploy.pools": ("ResourcePool",),
    "hfdsl.deploy.cluster": ("Cluster", "Nodes"),
    "hfdsl.protocols.protocol": ("Protocol",),
    "hfdsl.protocols.placement": ("Replicated", "Sharded", "Partial", "Varying", "At"),
}
"""The classes whose values are printed as code."""

ELEMENTS = 1000
"""Tensors of at most so many elements are, too."""


def register() -> None:
    """Register the types of hfdsl with hypothesis; it may be called again."""
    from hfdsl.testing.hypothesis_internals import print_by_name, strategy_lookup

    lookup = strategy_lookup()
    if lookup is not None:
        lookup["hfdsl"] = strategy_of
    for module, names in CODE.items():
        for name in names:
            print_by_name(module, name, _print_code)
    print_by_name("torch", "Tensor", _print_tensor)


def strategy_of(kind: Any) -> Any:
    """The strategy of a type of hfdsl, None for any other."""
    modules = (sys.modules.get(base.__module__) for base in getattr(kind, "__mro__", ()))
    if not any(module is not None and module.__name__ in CODE for module in modules):
        return None  # hfdsl is not loaded for the sake of other types
    from hfdsl.testing import strategies
    from hfdsl.types.batches import Batch

    if issubclass(kind, Batch):
        return None if kind is Batch else strategies.batches(kind)
    others: Any = {"Mesh": strategies.meshes, "ResourcePool": strategies.pools, "Cluster": strategies.clusters}
    return others[kind.__name__]() if kind.__name__ in others else None


def _print_code(value: Any, printer: Any, cycle: bool) -> None:
    from hfdsl.testing.code import as_code

    printer.text(as_code(value))


def _print_tensor(value: Any, printer: Any, cycle: bool) -> None:
    from hfdsl.testing.code import as_code

    try:
        printer.text(as_code(value) if value.numel() <= ELEMENTS else repr(value))
    except RuntimeError:  # a sparse one, or one without values
        printer.text(repr(value))
