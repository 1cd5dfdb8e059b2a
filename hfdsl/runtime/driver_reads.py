"""The driver's reads in a step: columns for runtime queries, and the result of the dataflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hfdsl.graph.columns import result_type, row_weight_of
from hfdsl.graph.program import Filter, Output, Ref
from hfdsl.graph.signatures import VALUE, ListType, PortType
from hfdsl.plan.payloads import PayloadKey
from hfdsl.plan.plan import Plan
from hfdsl.plan.reading import Reader, from_columns, to_columns
from hfdsl.plan.rows import RowTable, RuntimeQuery
from hfdsl.protocols.filtering import kept_rows
from hfdsl.protocols.ranges import RowRanges
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.handles import HandleTable
from hfdsl.runtime.rank.store import PayloadContent, memory_of, writable


class DriverReads:
    """Fetches payloads into the driver's store, each once, and reads values from it."""

    def __init__(self, plan: Plan, backend: Backend, handles: HandleTable) -> None:
        self._plan, self._backend, self._handles = plan, backend, handles
        self._fetched: set[PayloadKey] = set()
        self._memory: set[int] = set()  # of what was fetched: other processes may read it too

    def missing(self, keys: Iterable[PayloadKey]) -> list[Any]:
        """The handles of payloads that have not been fetched."""
        return [self._handles[key] for key in keys if key not in self._fetched]

    def skip(self, keys: Iterable[PayloadKey]) -> None:
        """Mark payloads as fetched: the driver's store has their contents."""
        self._fetched.update(keys)

    def fetch(self, keys: Iterable[PayloadKey]) -> list[PayloadContent]:
        """Fetch the payloads that have not been fetched before."""
        keys = [key for key in keys if key not in self._fetched]
        self._fetched.update(keys)
        return self.get([self._handles[key] for key in keys])

    def get(self, handles: Sequence[Any]) -> list[PayloadContent]:
        """The payloads of these handles."""
        contents = self._backend.get(handles)
        self._memory |= memory_of(contents)
        return contents

    def reader(self, keys: Iterable[PayloadKey], table: RowTable) -> Reader:
        """A reader of values in these payloads."""
        store = self._backend.driver.store
        for content in self.fetch(keys):
            store.receive(content)
        return Reader(self._plan.graph.nodes, self._plan.layouts, table, store.read)

    def kept_rows(self, query: RuntimeQuery, reader: Reader) -> tuple[int, ...]:
        """The rows that a filter keeps.

        Raises:
            SizeError: HF313 if it keeps a part of a group.
        """
        node, ref = self._plan.node(query.node), query.ref
        mask = reader.column(ref.node, ref.column or VALUE, ((0, reader.table.rows[ref.node]),))
        group_size = node.op.group if isinstance(node.op, Filter) else 1
        return kept_rows(mask.tolist(), group_size, f"'filter' in line {node.span.line}")

    def row_weights(self, query: RuntimeQuery, reader: Reader) -> tuple[int, ...]:
        """The weight of each row; only these numbers are sent, computed where the column is."""
        ref = query.ref

        def fetch_row_weights(node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
            return reader.fetch(node, row_weight_of(column), chunk, rows)

        every_row = ((0, reader.table.rows.get(ref.node, 0)),)
        column = replace(reader, fetch=fetch_row_weights).column(ref.node, ref.column or VALUE, every_row)
        return () if column is None else tuple(column.tolist())

    def result(self, output: Output, reader: Reader) -> Any:
        """The result of the dataflow."""

        def value_of(ref: Ref) -> Any:
            kind = result_type(self._plan.graph, ref)
            return self._writable(kind, reader.value(ref, kind, ((0, reader.table.rows.get(ref.node, 0)),)))

        return output.build(value_of)

    def _writable(self, kind: PortType, value: Any) -> Any:
        """A result that the caller may write and keep: no other process sees the change or keeps memory for it."""
        if isinstance(kind, ListType):
            return type(value)(self._writable(kind.inner, entry) for entry in value)
        return None if value is None else from_columns(kind, writable(to_columns(value), self._memory))
