"""No text under a line, no line through a box, no two values on one line: on many scenes drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

import pytest

from hfdsl.tools.layout import PAGE, Sheet, Text, lay_out, text_width
from hfdsl.tools.scene import Lane, Link, Scene, SceneBox


class Area(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Area, slack: float = 0.01) -> bool:
        return (
            self.left < other.right - slack
            and other.left < self.right - slack
            and self.top < other.bottom - slack
            and other.top < self.bottom - slack
        )


def any_scene(seed: int) -> Scene:
    lot = random.Random(seed)
    pools = [Lane(f"pool{i}", f"pool{i}", ("4 GPUs", "actor: Actor, dp=4")) for i in range(lot.randint(1, 4))]
    driver = Lane("driver", "driver", ("input and results",))
    last = lot.randint(1, 6) + 1
    boxes = [
        SceneBox(key=f"in{i}", kind="input", lane="driver", role=f"in{i}", level=0, title=f"input{i}", lines=("T",))
        for i in range(lot.randint(1, 2))
    ]
    for level in range(1, last):
        for _ in range(lot.randint(1, 3)):
            lane = lot.choice(pools) if lot.random() < 0.9 else driver
            key, role = f"n{len(boxes)}", f"role{lot.randint(0, 3)}"
            boxes.append(
                SceneBox(
                    key=key,
                    kind="call",
                    lane=lane.key,
                    role=role,
                    level=level,
                    title=f"{role}.{key}",
                    lines=("3D_PROTO · dp=2",),
                )
            )
    boxes.append(
        SceneBox(key="out0", kind="result", lane="driver", role="out0", level=last, title="result", lines=("R",))
    )
    links = []
    for box in boxes:
        earlier = [candidate for candidate in boxes if candidate.level < box.level]
        for source in lot.sample(earlier, min(len(earlier), lot.randint(1, 4))):
            columns = tuple(f"column{i}" for i in range(lot.randint(0, 6)))
            links.append(Link(source.key, box.key, columns, "1 MiB", lot.choice(["in process", "object store"])))
    used = {box.lane for box in boxes}
    lanes = tuple(lane for lane in (driver, *pools) if lane.key in used)
    return Scene(title="any", subtitle="", lanes=lanes, boxes=tuple(boxes), links=tuple(links), levels=last + 1)


def boxes_of(sheet: Sheet) -> list[Area]:
    return [Area(a.x, a.y, a.x + a.width, a.y + a.height) for _, a in sheet.boxes]


def text_area(text: Text) -> Area:
    width = text_width(text.text, text.size, text.bold)
    x = text.at.x - width * text.right
    return Area(x, text.at.y - 0.7 * text.size, x + width, text.at.y)


def lines_of(sheet: Sheet) -> Iterator[tuple[str, Area]]:
    for wire in sheet.wires:
        for a, b in pairwise(wire.corners):
            assert a.x == b.x or a.y == b.y
            yield wire.link.source, Area(min(a.x, b.x), min(a.y, b.y), max(a.x, b.x), max(a.y, b.y))


def grown(area: Area, by: float) -> Area:
    return Area(area.left - by, area.top - by, area.right + by, area.bottom + by)


@pytest.mark.parametrize("seed", range(100))
def test_nothing_covers_anything(seed: int) -> None:
    sheet = lay_out(any_scene(seed))
    boxes, texts, lines = boxes_of(sheet), list(map(text_area, sheet.texts)), list(lines_of(sheet))
    paper = Area(0, 0, sheet.width, sheet.height)
    for area in [*boxes, *texts, *(line for _, line in lines)]:
        assert paper.left < area.left <= area.right < paper.right
        assert paper.top < area.top <= area.bottom < paper.bottom
    assert not any(a.meets(b) for a, b in combinations(boxes, 2))
    assert not any(a.meets(b) for a, b in combinations(texts, 2))
    for text in texts:
        around = [box for box in boxes if box.meets(text)]
        assert all(box.left < text.left and text.right < box.right for box in around)
        assert all(box.top < text.top and text.bottom < box.bottom for box in around)
    for _, line in lines:
        assert not any(grown(line, 0.1).meets(text) for text in texts)
        assert not any(grown(line, 0.1).meets(grown(box, -1)) for box in boxes)  # it ends at their edges
    for (source, a), (second_source, b) in combinations(lines, 2):
        if source != second_source:
            upright = a.left == a.right == b.left == b.right and min(a.bottom, b.bottom) - max(a.top, b.top) > 1
            level = a.top == a.bottom and b.top == b.bottom and abs(a.top - b.top) < 2
            assert not upright
            assert not (level and min(a.right, b.right) - max(a.left, b.left) > 1)


def test_boxes_lie_in_their_lanes() -> None:
    sheet = lay_out(any_scene(7))
    lanes = {lane.key: area for lane, area in sheet.lanes}
    for box, area in sheet.boxes:
        if box.kind != "call":
            continue
        lane = lanes[box.lane]
        assert lane.x < area.x
        assert area.x + area.width < lane.x + lane.width
        assert lane.y < area.y
        assert area.y + area.height < lane.y + lane.height


@pytest.mark.parametrize("seed", range(100))
def test_text_is_ten_pixels_high_in_the_column_of_a_page(seed: int) -> None:
    sheet = lay_out(any_scene(seed))
    if len(sheet.lanes) <= 4:
        assert min(text.size for text in sheet.texts) * min(1.0, PAGE / sheet.width) >= 10
