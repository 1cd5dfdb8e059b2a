"""Precision: in which dtype a role computes.

A role with a policy has a plain static method ``computes(...)``, which takes what the constructor takes and gives the
name of the dtype of its matrix products, such as ``"bfloat16"``. It is asked before there is a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def computing_dtype(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the dtype; None where the role does not say, or cannot.

    >>> class Engine:
    ...     @staticmethod
    ...     def computes(dtype: str = "bfloat16") -> str:
    ...         return dtype
    >>> computing_dtype(Engine, (), {}), computing_dtype(Engine, (), {"dtpe": 1}), computing_dtype(object, (), {})
    ('bfloat16', None, None)
    """
    computes: Callable[..., Any] = getattr(role, "computes", lambda *_, **__: None)
    try:
        dtype = computes(*args, **kwargs)
    except Exception:  # noqa: BLE001  # wrong arguments are reported as such, at the check or the launch
        return None
    return dtype if isinstance(dtype, str) else None
