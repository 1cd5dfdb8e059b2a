"""Errors that name a row of the batch."""

from __future__ import annotations

from hfdsl.errors import HfError
from hfdsl.protocols.call import running_call


def bad_row(row: int, problem: str, code: str = "HF811") -> HfError:
    """The error for row ``row`` of this rank, with its number in the whole batch."""
    call = running_call()
    batch_row = call.rows[row] if call is not None and call.row_count is not None else row
    return HfError(code, f"row {batch_row}: {problem}")
