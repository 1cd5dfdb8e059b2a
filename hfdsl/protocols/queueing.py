"""Queues between stages: disciplines for groups that would be too stale, capacity, and valid arguments."""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import Literal, TypeAlias, get_args

from hfdsl.types.dims import Dim
from hfdsl.types.numbers import brief, count_limit, is_count
from hfdsl.types.similar_names import nearest

Late: TypeAlias = Literal["wait", "drop", "refill", "mask"]
"""The disciplines: what a queue does with groups that would exceed its lag.

``wait``: batches are taken in order of dispatch, and the reader waits for them. ``drop``: late groups leave the queue.
``refill``: they leave, and others are dispatched in their place. ``mask``: they are trained with a mask of zeros.
"""

DISCIPLINES: tuple[Late, ...] = get_args(Late)


def needed_places(dispatched: int, batch: int, group: int, lag: int, late: Late | None, loses: bool = False) -> int:
    """The rows that a queue needs places for, so that the step that fills it and its reader never both wait.

    A step dispatches D rows, a batch has R, and the lag is k. The reader leaves fewer than R rows, a multiple of
    gcd(D, R); the next step needs places beside them. "drop" and "refill" also remove late groups one by
    one, so any number of groups may remain. No row is late if none outlives k more batches: for k = 0, since there are
    places for one batch only, and for D = (k + 1) R, which is dispatched only after the reader has taken all rows. A
    filter in front of the queue ``loses`` groups one by one under every discipline and lag.

    >>> needed_places(96, 64, group=16, lag=1, late="wait")
    128
    >>> needed_places(96, 64, group=16, lag=1, late="drop")
    144
    """
    remainder = gcd(dispatched, batch)
    if loses or (late in ("drop", "refill") and lag > 0 and remainder < batch):
        remainder = gcd(remainder, group)
    return dispatched + batch - remainder


def batches_in_words(share: Fraction) -> str:
    """How many of a loader's batches.

    >>> [batches_in_words(Fraction(share)) for share in ("1", "2", "1/2", "3/2")]
    ['1 batch', '2 batches', '1/2 of a batch', '3/2 batches']
    """
    return f"{share} of a batch" if share < 1 else f"{share} batch{'es' * (share != 1)}"


def queue_problem(rows: object, group: object, lag: object, late: object) -> str | None:
    """Describe the first invalid argument of a queue; None if all are valid.

    >>> queue_problem(rows=None, group=1, lag=-1, late="wait")
    'lag= takes a whole number of updates, 0 or more, got -1'
    >>> queue_problem(rows=None, group=1, lag=2**63, late="wait")
    'lag= takes a whole number of updates, 2**63 - 1 or less, got 9223372036854775808'
    >>> queue_problem(rows=None, group=1, lag=1, late="wiat")
    "late= takes 'wait', 'drop', 'refill', 'mask' or is left out, got 'wiat'; did you mean 'wait'?"
    """
    if rows is not None and not is_count(rows) and not (isinstance(rows, type) and issubclass(rows, Dim)):
        return f"rows= takes a whole number of rows, {count_limit(rows)}, or a dim, got {brief(rows)}"
    if not is_count(group):
        return f"group= takes a whole number of rows, {count_limit(group)}, got {brief(group)}"
    if isinstance(rows, int) and rows % group:
        return f"rows={rows} cannot be filled with whole groups of {group} rows"
    if lag is not None and not is_count(lag, least=0):
        return f"lag= takes a whole number of updates, {count_limit(lag, least=0)}, got {brief(lag)}"
    if late is not None and late not in DISCIPLINES:
        near = nearest(late, DISCIPLINES) if isinstance(late, str) else None
        hint = "" if near is None else f"; did you mean '{near}'?"
        return f"late= takes {', '.join(map(repr, DISCIPLINES))} or is left out, got {brief(late)}{hint}"
    if late is not None and lag is None:
        return f"late={late!r} says what happens to groups beyond a lag, and there is no lag="
    return None
