"""Registration with hypothesis: strategies for hfdsl's types, and values that print as code.

It loads nothing of hfdsl before a value is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PRINTED_AS_CODE = {
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

MAX_PRINTED_ELEMENTS = 1000
"""Elements of the largest tensor that is printed as code, too."""


def register(strategy_of: Callable[[Any], Any]) -> None:
    """Register the function from a type of hfdsl to its strategy with hypothesis; it may be called again."""
    from hfdsl.testing.hypothesis_internals import print_by_name, strategy_lookup

    lookup = strategy_lookup()
    if lookup is not None:
        lookup["hfdsl"] = strategy_of
    for module, names in PRINTED_AS_CODE.items():
        for name in names:
            print_by_name(module, name, _print_code)
    print_by_name("torch", "Tensor", _print_tensor)


def is_of_hfdsl(kind: Any) -> bool:
    """Whether a type is one of those that are printed as code, or derives from one; it loads nothing to find out."""
    modules = (sys.modules.get(base.__module__) for base in getattr(kind, "__mro__", ()))
    return any(module is not None and module.__name__ in PRINTED_AS_CODE for module in modules)


def _print_code(value: Any, printer: Any, cycle: bool) -> None:
    from hfdsl.testing.code import as_code

    printer.text(as_code(value))


def _print_tensor(value: Any, printer: Any, cycle: bool) -> None:
    from hfdsl.testing.code import as_code

    try:
        printer.text(as_code(value) if value.numel() <= MAX_PRINTED_ELEMENTS else repr(value))
    except RuntimeError:  # a sparse one, or one without values
        printer.text(repr(value))
