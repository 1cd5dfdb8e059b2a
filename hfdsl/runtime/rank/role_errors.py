"""The error for an exception in a role's code, and the check that the role's code raised it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hfdsl.errors import HfError, LostProcessError, RoleError, SyncError
from hfdsl.graph.spans import traceback_span, until_user
from hfdsl.protocols.raised import as_raised, described, ends_process, trace_of

READY_ROLES = ("HF811", "HF812", "HF911", "HF912", "HF913")
"""The codes that bodies of ready-made roles raise: their messages are complete without a traceback through hfdsl."""

RUNTIME = f"{Path(__file__).parent.parent}{os.sep}"

TYPED = (*(f"HF95{digit}" for digit in range(8)), "HF710", "HF715", "HF962", "HF963", "HF964")
"""The codes of engines, adapters and saved models, likewise complete; their errors have several types."""


BROKEN_CONNECTION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused|was closed)|broken pipe|socket (closed|timeout)|remote process exited",
    re.IGNORECASE,
)
"""Texts of errors that a peer's death causes."""


def role_error(label: str, rank: int, step_number: int | None, error: BaseException) -> HfError:
    """The error for an exception in a role's code on a rank, in a step of a run or outside of one.

    Raises:
        SystemExit: ``error`` itself if it ends the process.
    """
    if ends_process(error):
        raise error
    step = f" in step {step_number}" if step_number is not None else ""
    if isinstance(error, HfError) and error.code == "HF807":  # a wait without end has the same code on every backend
        return HfError("HF807", f"'{label}'{step}: {error.message} ({traceback_span(error)})")
    if isinstance(error, SyncError) and error.code == "HF774":  # of the sync, which has looked at the role's memory
        return error
    if isinstance(error, HfError) and error.code in READY_ROLES:
        return RoleError(error.code, f"'{label}' on rank {rank}{step}: {error.message}")
    if isinstance(error, HfError) and error.code in TYPED:
        return as_raised(RoleError(error.code, f"'{label}' on rank {rank}{step}: {error.message}"), error)
    frame = _from_role(error.__traceback__)
    if isinstance(error, HfError):
        frame = until_user(frame)  # the user's line is what to mend, not hfdsl's lines that check what it passes
    text = f"'{label}' raised on rank {rank}{step}: {described(error)}\n\n{trace_of(error, frame)}"
    raised = RoleError("HF806", text)
    # A stream is a generator, out of which Python lets no StopIteration.
    return raised if isinstance(error, (StopIteration, StopAsyncIteration)) else as_raised(raised, error)


def _from_role(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without its first frames, those of the runtime that called the role."""
    frame = first = trace
    while first and frame and frame.tb_frame.f_code.co_filename == first.tb_frame.f_code.co_filename:
        frame = frame.tb_next
    user_frame = frame
    while user_frame and user_frame.tb_frame.f_code.co_filename.startswith(RUNTIME):
        user_frame = user_frame.tb_next
    return user_frame or frame


@contextmanager
def sending(label: str, rank: int, step_number: int | None = None) -> Iterator[None]:
    """Within this context, an error in sending what a call has returned names the call, not those who read it.

    Raises:
        RoleError: HF806.
    """
    try:
        yield
    except HfError:
        raise
    except Exception as error:  # noqa: BLE001  # as the role has it, which may be anything
        step = f" in step {step_number}" if step_number is not None else ""
        failed = f"what '{label}' returned cannot be sent from rank {rank}{step}: {described(error)}"
        text = f"{failed}\n\n{trace_of(error, error.__traceback__)}"
        raise as_raised(RoleError("HF806", text), error) from None


def raised_by_body(error: Exception) -> bool:
    """Whether a body itself raised an error, rather than a lost process or a broken connection to a peer."""
    is_role_error = isinstance(error, RoleError) and not isinstance(error, LostProcessError)
    return is_role_error and not BROKEN_CONNECTION.search(str(error))
