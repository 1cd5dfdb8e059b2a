"""The table of legal collects against a denotation: place rows on a small mesh, collect, and see if they are there."""

from itertools import product
from typing import Any

import pytest

from hfdsl.errors import ProtocolError
from hfdsl.protocols import PREDEFINED, Mesh, Protocol
from hfdsl.protocols.placement import (
    LAST,
    At,
    AxisPlacement,
    Collect,
    Partial,
    R,
    S,
    Sharded,
    V,
    default_leaves,
    fault,
    faults,
)

SIZES = (2, 3, 2)
ROWS = tuple(range(1, 13))  # no row is 0 and no sum of rows is a row list, so wrong collects show
PLACEMENTS: tuple[AxisPlacement, ...] = (R, S, Partial("sum"), V, At(0), LAST)
COLLECTS: tuple[Collect, ...] = ("join", "first", "last", "sum")

TERMS = {2: (2**0.5 - 1, 2 - 2**0.5), 3: (5**0.5 - 2, 0.3, 2.7 - 5**0.5)}  # irrational: no wrong sum is right by chance


def place(rows: Any, placements: tuple[AxisPlacement, ...], sizes: tuple[int, ...]) -> Any:
    """The nested lists of local values that mean ``rows``; None, which spoils every collect, where nothing is said."""
    if not placements:
        return rows
    kind, size = placements[0], sizes[0]
    local: list[Any] = []
    for index in range(size):
        match kind:
            case Sharded():
                part = None if rows is None else rows[index * len(rows) // size : (index + 1) * len(rows) // size]
            case At(at):
                part = rows if index == at % size else None
            case Partial():
                part = None if rows is None else tuple(row * TERMS[size][index] for row in rows)
            case _:
                part = rows if kind == R else None
        local.append(place(part, placements[1:], sizes[1:]))
    return local


def take(local: Any, collects: tuple[Collect, ...]) -> Any:
    if not collects:
        return local
    parts = [take(part, collects[1:]) for part in local]
    match collects[0]:
        case "first":
            return parts[0]
        case "last":
            return parts[-1]
        case "join":
            return None if None in parts else tuple(row for part in parts for row in part)
    if None in parts or len({len(part) for part in parts}) > 1:
        return None
    return tuple(sum(rows) for rows in zip(*parts, strict=True))


def same(got: Any, rows: tuple[int, ...]) -> bool:
    return got is not None and len(got) == len(rows) and all(abs(a - b) < 1e-9 for a, b in zip(got, rows, strict=True))


def test_the_table_is_sound_and_complete() -> None:
    disagreements = []
    legal = 0
    for placements in product(PLACEMENTS, repeat=3):
        local = place(ROWS, placements, SIZES)
        for collects in product(COLLECTS, repeat=3):
            got = take(local, collects)
            means = same(got, ROWS)
            says = all(fault(p, c, n) is None for p, c, n in zip(placements, collects, SIZES, strict=True))
            legal += says
            if means != says:
                disagreements.append((placements, collects))
    assert not disagreements
    assert legal == 6**3  # two picks of R, one collect each of S, P, @0 and @last, none of V: six an axis


def test_a_lone_coordinate_is_all_there_is() -> None:
    for placement, collect in product(PLACEMENTS, COLLECTS):
        assert fault(placement, collect, 1) is None


@pytest.mark.parametrize(
    ("placement", "collect", "code"),
    [
        (R, "join", "HF405"),
        (R, 1, None),
        (S, "first", "HF403"),
        (Sharded(1), "join", "HF419"),
        (Partial("sum"), "first", "HF403"),
        (Partial("max"), "sum", "HF403"),
        (At(0), "last", "HF404"),
        (At(1), 1, None),
        (V, "join", "HF403"),
        (V, "list", None),
        (R, 5, "HF404"),
        (R, 2, "HF404"),
        (R, -1, "HF404"),
    ],
)
def test_the_code_of_a_bad_collect(placement: AxisPlacement, collect: Collect, code: str | None) -> None:
    assert fault(placement, collect, 2) == code


@pytest.mark.parametrize("name", PREDEFINED)
def test_predefined_protocols_collect_what_their_bodies_leave(name: str) -> None:
    assert faults(PREDEFINED[name], Mesh(pp=2, dp=2, tp=2, gen_tp=1)) == {}


def test_placements_of_3d() -> None:
    protocol = PREDEFINED["THREE_D_PROTO"]
    assert default_leaves(protocol) == {"dp": S, "pp": LAST, "tp": R}
    assert default_leaves(PREDEFINED["THREE_D_PP_ONLY"]) == {"pp": V, "dp": R, "tp": R}


def test_a_collect_at_the_wrong_stage_is_found() -> None:
    first_stage = Protocol("FIRST", split=("dp",), collect={"dp": "join", "pp": "first", "tp": "first"})
    assert faults(first_stage, Mesh(pp=2, dp=2)) == {"pp": "HF404"}
    assert faults(first_stage, Mesh(pp=1, dp=2)) == {}
    copies = Protocol("COPIES", split=("dp",), collect={"dp": "join", "tp": "join", "pp": "last"})
    assert faults(copies, Mesh(dp=2, tp=2)) == {"tp": "HF405"}
    with pytest.raises(ProtocolError, match=r"HF409"):
        faults(copies, Mesh(), {"cp": R})
