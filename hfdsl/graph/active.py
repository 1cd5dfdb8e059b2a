"""The trace that is running, if any. Here, since `import hfdsl` is kept fast and loads nothing that traces."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hfdsl.graph.trace import Tracer

tracing: ContextVar[Tracer | None] = ContextVar("hfdsl_tracer", default=None)
"""The tracer whose dataflow is being traced."""


def active_tracer(values: tuple[Any, ...]) -> Tracer | None:
    """The tracer whose symbolic values are among ``values``, else the one whose dataflow is being traced."""
    if "hfdsl.graph.trace" not in sys.modules:
        return None  # nothing was ever traced, so no value is symbolic
    from hfdsl.graph.symbolic import Symbolic

    return next((value._tracer for value in values if isinstance(value, Symbolic)), tracing.get())
