"""What is said of a role whose code raised."""

from __future__ import annotations

import traceback

from hfdsl.errors import HfError, RoleError
from hfdsl.graph.spans import traceback_span

READY_ROLES = ("HF811", "HF812", "HF911", "HF912", "HF913")
"""What the bodies of ready roles raise: their messages say all, and hfdsl's own traceback adds nothing."""


def role_error(what: str, rank: int, number: int | None, error: Exception) -> HfError:
    """The error for what a role's code raised on a rank, in a step of a run or outside of one."""
    step = f" in step {number}" if number is not None else ""
    if isinstance(error, HfError) and error.code == "HF807":  # a wait without end is told as such on every backend
        return HfError("HF807", f"'{what}'{step}: {error.message} ({traceback_span(error)})")
    if isinstance(error, HfError) and error.code in READY_ROLES:
        return RoleError(error.code, f"'{what}' on rank {rank}{step}: {error.message}")
    own = first = error.__traceback__
    while first and own and own.tb_frame.f_code.co_filename == first.tb_frame.f_code.co_filename:
        own = own.tb_next  # the first frames are the caller's
    trace = "".join(traceback.format_exception(type(error), error, own)).rstrip()
    return RoleError("HF806", f"'{what}' raised on rank {rank}{step}: {type(error).__name__}: {error}\n\n{trace}")
