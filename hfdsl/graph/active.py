"""The active trace, if any, and the interface through which symbolic values report to it.

The tracer itself stands above: ``import hfdsl`` is kept fast, and loads nothing that traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hfdsl.graph.misuses import MisuseKind
    from hfdsl.graph.program import Operand
    from hfdsl.graph.signatures import PortType, Signature
    from hfdsl.graph.spans import Span
    from hfdsl.types.batches import Batch


class Traced:
    """The base of symbolic values: what a value is to the graph (``_operand``), its type, and how messages show it."""

    __slots__ = ()
    _operand: Operand
    _shown: str
    _tracer: Tracing
    _type: PortType | None


class Tracing(Protocol):
    """A running trace: it records what the dataflow does with symbolic values, and every mistake on the way."""

    optional_reads: list[tuple[Span, str, PortType]]

    def record_misuse(
        self, kind: MisuseKind, subject: str, name: str = "", candidates: tuple[str, ...] = (),
        producer: Traced | None = None, signature: Signature | None = None,
    ) -> Any:  # fmt: skip  # as it is implemented
        """Record a mistake, and continue with a value that fits everywhere."""
        ...

    def count_decision(self) -> None:
        """Count a time that Python asks a value for a number or a truth."""
        ...

    def is_first_decision(self) -> bool:
        """Whether Python has not asked for a truth at this place before."""
        ...

    def signatures(self, role: type) -> Mapping[str, Signature | None]:
        """The signatures of a role's methods."""
        ...

    def call_role(self, role: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A role method is called."""
        ...

    def call_function(
        self, read_signature: Callable[[], Signature], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function is called."""
        ...

    def call_dataflow(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A dataflow is called within another one."""
        ...

    def repeat(self, batch: Any, times: Any) -> Any:
        """``hf.repeat``."""
        ...

    def minibatches(self, batch: Any, count: Any) -> tuple[Any, ...]:
        """``hf.minibatches``."""
        ...

    def filter(self, batch: Any, keep: Any, group: Any) -> Any:
        """``hf.filter``."""
        ...

    def take(self, batch: Any, rows: Any, fill: bool) -> Any:
        """``hf.take`` and ``hf.fill``."""
        ...

    def queue(self, batch: Any, rows: Any, group: Any, lag: Any, late: Any) -> Any:
        """``hf.queue``."""
        ...

    def merge(self, record: type[Batch], parts: tuple[Any, ...]) -> Any:
        """``hf.merge``."""
        ...

    def pack(self, record: type[Batch], columns: Mapping[str, Any]) -> Any:
        """Build a record from columns."""
        ...

    def present(self, column: Any) -> Any:
        """``hf.present``."""
        ...

    def can_sync(self, source: Any, target: Any) -> bool:
        """Whether ``hf.sync`` has something to send from one role to the other."""
        ...

    def mark_load_in_flight(self, method: object) -> None:
        """Note that the load which was called last takes effect between the tokens of a method."""


tracing: ContextVar[Tracing | None] = ContextVar("hfdsl_tracer", default=None)
"""The trace of the dataflow that is being traced."""


def active_tracer(values: tuple[Any, ...]) -> Tracing | None:
    """The trace whose symbolic values are among ``values``, else that of the dataflow that is being traced."""
    return next((value._tracer for value in values if isinstance(value, Traced)), tracing.get())
