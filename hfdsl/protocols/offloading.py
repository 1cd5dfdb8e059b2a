"""Offloading: an idle role releases its GPU memory, and reclaims it before its next call.

A role that can be offloaded has two plain methods, ``offload(part)`` and ``onload(part)``; the plan says when they are
called. What trains has two parts, anything else one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.protocols.state import effects_of, methods_with

Part: TypeAlias = Literal["weights", "optimizer"]
"""A part of a role that moves separately: its weights, or the memory that only methods with ``hf.writes`` use."""

PARTS: tuple[Part, ...] = get_args(Part)

MEMORY: Mapping[Part, frozenset[str]] = {
    "weights": frozenset({"weights", "gradients", "engine's weights", "engine's cache", "engine's working memory"}),
    "optimizer": frozenset({"master weights", "moments", "gradients"}),
}
"""What leaves the GPU with each part, of the memory that a role's ``gpu_bytes`` states; gradients move or are freed."""

METHODS = ("offload", "onload")


def parts_of(role: type) -> tuple[Part, ...]:
    """The parts of a role: two if a method writes a state.

    >>> parts_of(object)
    ('weights',)
    """
    return PARTS if methods_with(role, "writes") else PARTS[:1]


def parts_used(method: Callable[..., Any]) -> tuple[Part, ...]:
    """The parts that a method uses: all if it writes a state, else the weights alone."""
    return PARTS if any(effect.kind == "writes" for effect in effects_of(method)) else PARTS[:1]


def resident(memory: Mapping[str, int], away: Collection[Part]) -> dict[str, int]:
    """The memory that a role keeps while parts of it are on the host.

    >>> resident({"weights": 2, "moments": 8, "activations": 5}, {"optimizer"})
    {'weights': 2, 'activations': 5}
    """
    return {name: size for name, size in memory.items() if not any(name in MEMORY[part] for part in away)}


def not_offloadable(role: type) -> str | None:
    """Why a role cannot be offloaded, or None if it can."""
    for name in METHODS:
        method = getattr(role, name, None)
        if not callable(method):
            return f"it has no method '{name}(self, part)'"
        try:
            inspect.signature(method).bind(None, "weights")
        except TypeError:
            return f"its method '{name}' does not take one argument, the part"
        except ValueError:
            continue  # its size is unknown
    return None
