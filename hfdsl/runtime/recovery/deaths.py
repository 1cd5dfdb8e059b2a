"""Deaths of processes by call: the third death in one call is the user's error, and names the call's rows.

A worked example. Row 5 of 8 makes the judge of two ranks run out of memory; ``hf.Retries(attempts=3)``::

    step 2      judge.score, rank 0    judge.score, rank 1     deaths of judge.score on rank 1 in step 2
    attempt 1   rows 0 to 3            rows 4 to 7: killed     1
    attempt 2                          rows 4 to 7: killed     2
    attempt 3                          rows 4 to 7: killed     3: HF842, with rows 4 to 7

Why it is right. *The same call*: a call that is repeated has the arguments, the state and the random streams that it
had, so what the first attempt died of can be found in them, and no further attempt can do better. *Not the cluster*: a
node that fails kills calls of any step, and others on its next attempt; deaths count together only for one rank of one
call in one step. *Each death once*: an error lists all processes that are gone; one that was counted has the same pid.
They count for the whole run, since a stream may give out results between two attempts of a call that runs ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hfdsl.errors import RoleError

SAME_DEATHS = 3
"""The number of deaths in one call after which it is not repeated."""


@dataclass(frozen=True, slots=True)
class Death:
    """A dead process: the calls and the step in which it died, how it ended, and its ``rows``.

    ``labels`` is empty if it was called with nothing, ``step`` is None for a call outside of steps.
    """

    group: str
    rank: int
    labels: str
    step: tuple[str, int] | None
    end: str
    rows: str = ""


class RepeatedCall(NamedTuple):
    """A call on one rank that may be repeated."""

    plan: str
    step: int
    group: str
    rank: int
    labels: str


@dataclass(slots=True)
class Deaths:
    """The deaths of a run, by call, with the way each process ended."""

    ends: dict[RepeatedCall, dict[str, None]] = field(default_factory=dict)

    def add(self, deaths: Iterable[object], plan: str, step: int) -> RoleError | None:
        """Count the deaths during a step; return the error for a call that ends its process every time."""
        error = None
        for death in deaths:
            if not isinstance(death, Death) or not death.labels:
                continue
            call = RepeatedCall(*(death.step or (plan, step)), death.group, death.rank, death.labels)
            ends = self.ends.setdefault(call, {})
            ends[death.end] = None
            if len(ends) >= SAME_DEATHS and error is None:
                error = _always_dies(call, list(ends), death.rows)
        return error


def _always_dies(call: RepeatedCall, ends: Sequence[str], rows: str) -> RoleError:
    rows_of_rank = f"; the rank had {rows}" if rows else ""
    return RoleError(
        "HF842",
        f"{call.labels} ended its process {len(ends)} times on rank {call.rank} of '{call.group}', in step {call.step} "
        f"of '{call.plan}', and is not repeated again{rows_of_rank}"
        + "".join(f"\n  death {number}: {end}" for number, end in enumerate(ends, 1)),
    )
