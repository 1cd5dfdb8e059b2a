"""From one output per rank to the caller's value: joined, counted, and without pad rows.

Four ranks receive two of eight rows each. If each returns two rows, the joined value has eight, row i for row i; if
each returns four, it has two for every row. If rank 1 returns one row, it is unknown which row is missing: that is an
error (HF930), raised here rather than where the shorter value is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import ProtocolError, SizeError
from hfdsl.protocols.partitioning import NO_SPLIT, RowSplit
from hfdsl.protocols.split import join, restored, rows_of
from hfdsl.single_controller.stacks import grouped


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's output, with the split of the call's rows, which only the rank knows."""

    value: Any
    row_split: RowSplit


@dataclass(frozen=True, slots=True)
class JoinedOutput:
    """The rule that joins the outputs of the collected ranks into one value.

    ``unit`` is the number of consecutive rows that belong together; None is all, and allows any number of output rows.
    """

    subject: str = "the output"
    row_split: RowSplit = NO_SPLIT
    unit: int | None = 1
    ranks: tuple[int, ...] = ()
    joined: bool = True

    def assemble(self, outputs: Sequence[Any]) -> Any:
        """The joined value without pad rows, or the single value if nothing was split.

        Raises:
            ProtocolError: HF413 for outputs that cannot be joined.
            SizeError: HF930 for rows that do not add up, HF310 for rows whose padding is unknown.
        """
        if not self.joined:
            return outputs[0]
        row_split = next((output.row_split for output in outputs if isinstance(output, Shard)), self.row_split)
        pieces = [output.value if isinstance(output, Shard) else output for output in outputs]
        value = join(pieces, subject=self.subject)
        self._check_rows(pieces, row_split)
        return restored(value, row_split, self.subject)

    def _check_rows(self, pieces: Sequence[Any], row_split: RowSplit) -> None:
        if not row_split.rows or self.unit is None or len(pieces) % row_split.chunks:
            return
        try:
            counts: list[int] = [rows_of(piece, self.subject) for piece in pieces]
        except ProtocolError:
            return  # None, or a record of metrics
        units = (row_split.rows + row_split.added) // self.unit
        total = sum(counts)
        if len(set(counts)) == 1 and total and total % units == 0:
            return
        returned = {rank: f"{count}" for rank, count in zip(self.ranks, counts, strict=True)}
        per = "row" if self.unit == 1 else f"group of {self.unit}"
        raise SizeError(
            "HF930",
            f"{self.subject} has {total} rows for {row_split.rows}, and they cannot be attributed: every rank "
            f"received {row_split.chunk_size}, and returned ({'; '.join(grouped(returned))}). Return the same "
            f"number of rows for each {per}, or register the method with a protocol that gives a list, such as "
            'hf.Protocol("PARTS", split=("rank",), collect={"rank": "join"}, gives="per_rank")',
        )


UNSPLIT = JoinedOutput()
"""The rule for a value that was never split."""


def complete(result: Any) -> Any:
    """The result of a body; for a generator, the list of its items.

    >>> complete(row * 2 for row in [1, 2])
    [2, 4]
    """
    return list(result) if inspect.isgenerator(result) else result


async def completed(result: Any) -> Any:
    """The result of a body that may be a coroutine or an asynchronous generator."""
    if inspect.isawaitable(result) and not inspect.isgenerator(result):
        result = await result
    return [item async for item in result] if inspect.isasyncgen(result) else complete(result)
