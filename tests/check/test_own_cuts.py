"""Cuts and boxes of users' own: the check proves them however they are written, and says what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from linecache import getline
from typing import Any

import numpy as np
import pytest

import hfdsl as hf
from hfdsl.plan.resharding import compile_schedule
from hfdsl.protocols.layouts import Cut, Generation, Layout, Parameter, Replicas, Slices, StandardLayout
from tests.check.test_layouts import SLICED, engine_report, layout_findings

WEIGHTS = [Parameter("up.weight", (8, 8)), Parameter("gate.weight", (8, 8))]


@dataclass(frozen=True)
class By(Cut):
    """A cut by a function of the part and a coordinate; with a list it has no hash."""

    function: Callable[[Any, int], Any]
    axis: str | tuple[str, ...] = "tp"
    names: list[str] = field(default_factory=list)

    def cut(self, parameter: Parameter, part: Any, index: int, count: int) -> Any:
        return self.function(part, index)


def halves(part: Any, index: Any) -> Any:
    return ((4 * index, 4 * index + 4),), part[1]


def lacking(part: Any, index: int) -> Any:
    return ((4 * index, 4 * index + 3),), part[1]


def test_cuts_without_a_hash_are_proved() -> None:
    assert layout_findings(By(halves), WEIGHTS) == []
    assert layout_findings(Generation(By(halves)), WEIGHTS) == []
    expected = (
        "'engine' on Mesh(pp=1 dp=1 tp=2): 'up.weight' (8, 8): [3:4, 0:8] and 1 other box (16 elements) are on no"
    )
    for layout in (By(lacking), Replicas().then(By(lacking)), Generation(By(lacking))):
        [(code, message)] = layout_findings(layout, WEIGHTS)
        assert code == "HF736"
        assert message.startswith(expected)
        assert message.endswith("; the same holds for 1 other parameter")


@dataclass(frozen=True)
class Named(Cut):
    """A cut that goes by the name of a parameter."""

    axis: str | tuple[str, ...] = "tp"

    def cut(self, parameter: Parameter, part: Any, index: int, count: int) -> Any:
        return (lacking if parameter.name == "gate.weight" else halves)(part, index)


def test_a_cut_of_ones_own_may_go_by_names() -> None:
    [(code, message)] = layout_findings(Named(), WEIGHTS)
    assert (code, "'gate.weight'" in message) == ("HF736", True)
    schedule = compile_schedule(WEIGHTS, Replicas(), hf.Mesh(), NamedWhole(), SLICED)
    assert schedule.needed == (128 + 64, 128 + 64)


class NamedWhole(StandardLayout):
    """A list of cuts, of which one is not a dataclass and goes by names."""

    class Whole(Cut):
        axis = "tp"

        def cut(self, parameter: Parameter, part: Any, index: int, count: int) -> Any:
            return part if parameter.name == "up.weight" else halves(part, index)

    def cuts(self, parameter: Parameter, mesh: hf.Mesh) -> Any:
        return [self.Whole()]


PART = "By.cut gives coordinate 1 of 2 on tp of 'up.weight' (8, 8) "


@pytest.mark.parametrize(
    ("extent", "problem"),
    [
        ((((0, 4),),), "(((0, 4),),), which has 1 dim instead of 2"),
        (
            (((4, 9),), ((0, 8),)),
            "(((4, 9),), ((0, 8),)), whose range 4:9 of dim 0 is not within the part that it cuts",
        ),
        (
            (((-1, 4),), ((0, 8),)),
            "(((-1, 4),), ((0, 8),)), whose range -1:4 of dim 0 is not within the part that it cuts",
        ),
        ((((8, 4),), ((0, 8),)), "(((8, 4),), ((0, 8),)), whose range 8:4 of dim 0 ends before it starts"),
        ([[(4, 8)], [(0, 8)]], "[[(4, 8)], [(0, 8)]], which is no tuple with a tuple of ranges (start, stop) per dim"),
        (((4, 8), (0, 8)), "((4, 8), (0, 8)), which is no tuple with a tuple of ranges (start, stop) per dim"),
        ((((4.0, 8),), ((0, 8),)), "(((4.0, 8),), ((0, 8),)), which is no tuple with a tuple of ranges"),
        ((((4, 6, 8),), ((0, 8),)), "(((4, 6, 8),), ((0, 8),)), which is no tuple with a tuple of ranges"),
        (3, "3, which is no tuple with a tuple of ranges (start, stop) per dim"),
    ],
)
def test_a_cut_that_gives_no_part(extent: Any, problem: str) -> None:
    cut = By(lambda part, index: extent if index else halves(part, index))
    for layout in (cut, Replicas().then(cut)):
        [(code, message)] = layout_findings(layout, WEIGHTS)
        assert code == "HF739"
        assert message.startswith("'engine.load' on Mesh(pp=1 dp=1 tp=2): " + PART + problem)


def test_a_cut_that_leaves_what_an_earlier_one_has_left() -> None:
    [(code, message)] = layout_findings(Slices(0).then(By(lambda part, index: (((0, 4),), part[1]), "dp")), WEIGHTS)
    assert code == "HF739"
    assert "coordinate 0 of 1 on dp" in message
    assert "range 0:4 of dim 0 is not within the part that it cuts" in message


def test_what_a_cut_may_give() -> None:
    assert (
        layout_findings(By(lambda part, index: (((0, 4), (4, 4), (4, 8)), part[1]) if index else None), WEIGHTS) == []
    )
    assert layout_findings(By(lambda part, index: halves(part, np.int64(index))), WEIGHTS) == []


@dataclass(frozen=True)
class Boxes(Layout):
    function: Callable[[int], Any]

    def boxes(self, parameter: Parameter, mesh: hf.Mesh, rank: int) -> Any:
        return self.function(rank)


@pytest.mark.parametrize(
    ("boxes", "code", "problem"),
    [
        (None, "HF739", "None, which are no boxes: a box is a tuple with a range (start, stop) per dim"),
        ([[[4, 8], [0, 8]]], "HF739", "[[[4, 8], [0, 8]]], which are no boxes"),
        (((4, 8), (0, 8)), "HF739", "((4, 8), (0, 8)), which are no boxes"),
        ((((4, 8.0), (0, 8)),), "HF739", "(((4, 8.0), (0, 8)),), which are no boxes"),
        ((((4, 8),),), "HF735", "[4:8], which has 1 dim instead of 2"),
    ],
)
def test_boxes_that_are_none(boxes: Any, code: str, problem: str) -> None:
    layout = Boxes(lambda rank: boxes if rank else (((0, 4), (0, 8)),))
    [(found, message)] = layout_findings(layout, WEIGHTS)
    assert found == code
    place = "'up.weight' (8, 8), rank 1 (pp=0 dp=0 tp=1)"
    assert message.startswith(f"'engine.load' on Mesh(pp=1 dp=1 tp=2): Boxes.boxes gives for {place}, {problem}")


def test_boxes_that_raise_name_the_rank_and_the_line() -> None:
    halved = ([((0, 4), (0, 8))],)
    layout = Boxes(lambda rank: halved[rank])
    [finding] = [each for each in engine_report(layout, WEIGHTS).findings if each.code == "HF739"]
    place = "'up.weight' (8, 8), rank 1 (pp=0 dp=0 tp=1)"
    problem = f"its layout raises IndexError for {place}: tuple index out of range"
    assert finding.message == f"'engine.load' on Mesh(pp=1 dp=1 tp=2): {problem}"
    [raising] = [label for label in finding.related if label.text == "raises IndexError"]
    assert getline(raising.span.file, raising.span.line).strip() == "layout = Boxes(lambda rank: halved[rank])"


def test_what_boxes_may_be() -> None:
    for number in (int, np.int64):
        last = number(4), number(8)
        by_rank = [[((0, 4), (0, 8)), ((3, 3), (0, 8))], [(last, (0, 8))]]
        assert layout_findings(Boxes(by_rank.__getitem__), WEIGHTS) == []


@dataclass(frozen=True)
class Storing(Boxes):
    stored: Callable[[str], Any]

    def stored_as(self, name: str) -> Any:
        return self.stored(name)


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (lambda name: None, "gives None for 'up.weight', expected the name under which it is stored"),
        (lambda name: {}[name], "raises KeyError for 'up.weight': 'up.weight'"),
    ],
)
def test_a_layout_gives_the_name_under_which_a_parameter_is_stored(stored: Callable[[str], Any], problem: str) -> None:
    layout = Storing(lambda rank: (((4 * rank, 4 * rank + 4), (0, 8)),), stored)
    assert layout_findings(layout, WEIGHTS) == [("HF739", f"the layout of 'engine.load': Storing.stored_as {problem}")]
