"""Engines: with which engine a role samples, where that is not the one of a policy that learns.

A role that generates with an engine whose log-probs are not the trainer's has a plain static method
``samples_with(...)``, which takes what the constructor takes and gives the engine's name, such as ``"vllm"``, or None
where its configuration says that the trainer's own engine samples. It is asked before there is a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def sampling_engine(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the engine; None where it is the trainer's, where the role does not say, or where it cannot.

    >>> class Engine:
    ...     @staticmethod
    ...     def samples_with(engine: str = "vllm") -> str | None:
    ...         return None if engine == "plain" else engine
    >>> sampling_engine(Engine, (), {}), sampling_engine(Engine, ("plain",), {}), sampling_engine(object, (), {})
    ('vllm', None, None)
    """
    samples_with: Callable[..., Any] = getattr(role, "samples_with", lambda *_, **__: None)
    try:
        engine = samples_with(*args, **kwargs)
    except Exception:  # noqa: BLE001  # wrong arguments are reported as such, at the check or the launch
        return None
    return engine if isinstance(engine, str) else None
