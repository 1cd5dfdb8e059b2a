"""A scene laid out: pools as lanes from top to bottom, stages from left to right, lines in channels that cross no text.

Between two columns of boxes lies a gap: first a channel of vertical tracks, then a zone of labels, each label on the
last, level part of its line. Between two rows lies a corridor of level tracks, for lines that pass by boxes. All values
of one box leave by one line that branches. Lengths are points, y grows downwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hfdsl.tools.scene import Box, Lane, Link, Scene

Measure = Callable[[str, float, bool], float]
"""The width of a text at a font size, bold or not."""

TITLE, BODY, LABEL = 10.0, 8.0, 7.5  # font sizes
LEADING = 1.35  # line height over font size
PAD = 9.0  # inside a box
TRACK = 9.0  # between two parallel lines
MARGIN = 24.0
LANE_PAD = 14.0  # between the edge of a lane and its boxes
HEAD = 56.0  # above the first corridor: title and stage numbers
FOOT = 54.0  # below the last corridor: the legend
LEGEND = (
    "moves to another process",
    "is read in the process that made it",
    "one colour: all that one box gives   ·   one stage: may run at the same time",
)
LABEL_CHARS = 24  # a label's columns are broken into lines of about this length
LABEL_LINES = 4


class Point(NamedTuple):
    """A place on the sheet."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Rectangle:
    """An area: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A drawn link: its corners from box to box, its label's lines, and where the last of them begins."""

    link: Link
    corners: tuple[Point, ...]
    label: tuple[str, ...]
    label_at: Point


@dataclass(frozen=True, slots=True)
class Sheet:
    """Everything with its place."""

    scene: Scene
    width: float
    height: float
    lanes: tuple[tuple[Lane, Rectangle], ...]
    boxes: tuple[tuple[Box, Rectangle], ...]
    wires: tuple[Wire, ...]
    stages: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class _Net:
    """The lines that leave one box: their corridor, their level there, and by gap the number of their track."""

    source: str
    links: list[Link]
    first: int
    last: int
    corridor: int | None = None
    level: int = 0
    track: dict[int, int] = field(default_factory=dict)


def wrap(columns: Sequence[str], width: int = LABEL_CHARS, lines: int = LABEL_LINES) -> tuple[str, ...]:
    """Column names in lines of about ``width`` characters; what does not fit is counted.

    >>> wrap(["ids", "mask", "log_probs"], width=10, lines=2)
    ('ids, mask,', 'log_probs')
    >>> wrap(["ids", "mask", "log_probs", "values"], width=10, lines=2)
    ('ids, mask,', '+2 more')
    """
    broken: list[list[str]] = []
    for name in columns:
        if broken and len(", ".join([*broken[-1], name])) <= width:
            broken[-1].append(name)
        else:
            broken.append([name])
    if len(broken) > lines:
        rest = sum(len(row) for row in broken[lines - 1 :])
        broken = [*broken[: lines - 1], [f"+{rest} more"]]
    return tuple(", ".join(row) + ("," if i < len(broken) - 1 else "") for i, row in enumerate(broken))


def label_lines(link: Link) -> tuple[str, ...]:
    """A link's label: its columns, then bytes and transport."""
    return (*wrap(link.columns), *filter(None, [link.note]))


def lay_out(scene: Scene, measure: Measure) -> Sheet:
    """Give everything its place."""
    return _Layout(scene, measure).sheet()


class _Layout:
    """One layout under way; the steps in ``__init__`` build on each other in this order."""

    def __init__(self, scene: Scene, measure: Measure) -> None:
        self.scene, self.measure = scene, measure
        self.box = {box.key: box for box in scene.boxes}
        self.row_of, self.lane_of_row = _rows(scene)
        self.incoming = {box.key: self._incoming(box) for box in scene.boxes}
        self.size = {box.key: self._box_size(box) for box in scene.boxes}
        self.nets = self._nets()
        self._assign_corridors()
        self.row_top, self.row_height, self.lane_area, self.corridor_top, self.height = self._vertical()
        self.boxes: dict[str, Rectangle] = {}
        self.gap_left: list[float] = []
        self.channels = [0] * (scene.stages - 1)
        self._place_boxes()  # once without the widths of the channels, for the heights that tracks are assigned by
        self.port = {id(link): y for box in scene.boxes for link, y in self._ports(box)}
        self.out = {net.source: self._out(net) for net in self.nets}
        self._assign_tracks()
        self.width = self._place_boxes()

    # -- rows and sizes

    def _incoming(self, box: Box) -> list[Link]:
        """A box's incoming links from top to bottom as their sources are."""
        links = [link for link in self.scene.links if link.target == box.key]
        return sorted(links, key=lambda link: (self.row_of[link.source], -self.box[link.source].stage))

    def _slot(self, link: Link) -> float:
        return max(1, len(label_lines(link))) * LABEL * LEADING + 9

    def _box_size(self, box: Box) -> tuple[float, float]:
        width = max([self.measure(box.title, TITLE, True), *(self.measure(line, BODY, False) for line in box.lines)])
        text = TITLE * LEADING + len(box.lines) * BODY * LEADING
        slots = sum(self._slot(link) for link in self.incoming[box.key])
        return width + 2 * PAD, max(text + 2 * PAD, slots + 4)

    # -- nets: which corridor, which level

    def _nets(self) -> list[_Net]:
        nets = []
        for box in self.scene.boxes:
            links = [link for link in self.scene.links if link.source == box.key]
            if links:
                ends = [self.box[link.target].stage - 1 for link in links]
                nets.append(_Net(box.key, links, box.stage, max(ends)))
        return nets

    def _assign_corridors(self) -> None:
        """A net that passes by columns goes straight on where its row is free, else by corridor near its ends."""
        taken: dict[int, list[tuple[int, int, int]]] = {}
        for net in sorted((n for n in self.nets if n.last > n.first), key=lambda n: n.first - n.last):
            row = self.row_of[net.source]
            between = range(net.first + 1, net.last + 1)
            if not any(self.row_of[b.key] == row and b.stage in between for b in self.scene.boxes):
                continue
            far = [self.row_of[k.target] for k in net.links if self.box[k.target].stage - 1 > net.first]
            net.corridor = min(
                range(len(self.lane_of_row) + 1),
                key=lambda c: (sum(abs(c - 0.5 - r) for r in (row, *far)), len(taken.get(c, [])), c),
            )
            runs = taken.setdefault(net.corridor, [])
            busy = {level for first, last, level in runs if first <= net.last and net.first <= last}
            net.level = next(level for level in range(len(busy) + 1) if level not in busy)
            runs.append((net.first, net.last, net.level))

    def _levels(self, corridor: int) -> int:
        return 1 + max((net.level for net in self.nets if net.corridor == corridor), default=-1)

    # -- heights

    def _vertical(self) -> tuple[list[float], list[float], dict[str, tuple[float, float]], list[float], float]:
        rows = range(len(self.lane_of_row))
        heights = [max(self.size[key][1] for key, row in self.row_of.items() if row == r) for r in rows]
        tops, corridors, areas = [0.0 for _ in rows], [0.0 for _ in range(len(heights) + 1)], {}
        y = HEAD
        for number, lane in enumerate(self.scene.lanes):
            mine = [r for r in rows if self.lane_of_row[r] == number]
            corridors[mine[0]] = y + TRACK
            y += self._levels(mine[0]) * TRACK + TRACK  # outside of the lane, on white
            top = y
            y += LANE_PAD
            for r in mine:
                if r != mine[0]:
                    corridors[r] = y + TRACK
                    y += (self._levels(r) + 1) * TRACK + 4
                tops[r] = y
                y += heights[r]
            y = max(y + LANE_PAD, top + TITLE * LEADING + len(lane.lines) * BODY * LEADING + 2 * LANE_PAD - 6)
            if len(mine) == 1:  # the title may be higher than the boxes: keep them in the middle
                tops[mine[0]] = (top + y - heights[mine[0]]) / 2
            areas[lane.key] = (top, y)
        corridors[-1] = y + TRACK
        y += self._levels(len(heights)) * TRACK + TRACK
        return tops, heights, areas, corridors, y + FOOT

    def _level_y(self, net: _Net) -> float:
        if net.corridor is None:
            return self.out[net.source]
        return self.corridor_top[net.corridor] + net.level * TRACK

    # -- widths

    def _place_boxes(self) -> float:
        """Columns from left to right; gives the width of the sheet."""
        x = MARGIN + self._title_width() + 2 * PAD
        self.gap_left = []
        for stage in range(self.scene.stages):
            column = [box for box in self.scene.boxes if box.stage == stage]
            width = max((self.size[box.key][0] for box in column), default=0.0)
            for box in column:
                _, high = self.size[box.key]
                row = self.row_of[box.key]
                y = self.row_top[row] + (self.row_height[row] - high) / 2
                self.boxes[box.key] = Rectangle(x, y, width, high)
            x += width
            if stage < self.scene.stages - 1:
                self.gap_left.append(x)
                x += self._channel_width(stage) + self._label_width(stage)
        return max(x + LANE_PAD, MARGIN + 420) + MARGIN  # the legend has its width too

    def _title_width(self) -> float:
        return max(
            max([self.measure(lane.title, TITLE, True), *(self.measure(line, BODY, False) for line in lane.lines)])
            for lane in self.scene.lanes
        )

    def _channel_width(self, gap: int) -> float:
        return (self.channels[gap] + 1) * TRACK + 4

    def _label_width(self, gap: int) -> float:
        """The zone of labels before column ``gap + 1``."""
        labels = [
            self.measure(line, LABEL, False)
            for box in self.scene.boxes
            if box.stage == gap + 1
            for link in self.incoming[box.key]
            for line in label_lines(link)
        ]
        return max(labels, default=0.0) + 20

    # -- where lines meet boxes

    def _ports(self, box: Box) -> Iterator[tuple[Link, float]]:
        """The height at which each link enters: under its label."""
        area, links = self.boxes[box.key], self.incoming[box.key]
        y = area.y + (area.height - sum(map(self._slot, links))) / 2
        for link in links:
            y += self._slot(link)
            yield link, y - 5

    def _out(self, net: _Net) -> float:
        """The height at which a net leaves: level with a port that it feeds, else clear of all that it comes by."""
        area = self.boxes[net.source]
        ends = {net.first + 1} if net.corridor is not None else {net.first + 1, net.last + 1}
        met = [box for box in self.scene.boxes if box.stage in ends]
        fed = [self.port[id(link)] for link in net.links if self.box[link.target] in met]
        level = [y for y in fed if area.y + 6 <= y <= area.y + area.height - 6]
        middle = area.y + area.height / 2
        if level:
            return min(level, key=lambda y: abs(y - middle))
        others = [self.port[id(link)] for box in met for link in self.incoming[box.key]]
        offsets = [0.0, *(sign * step for step in range(2, int(area.height / 2) - 4, 2) for sign in (-1, 1))]
        clear = [middle + d for d in offsets if all(abs(middle + d - y) >= 5 for y in others)]
        return clear[0] if clear else middle

    # -- vertical tracks

    def _assign_tracks(self) -> None:
        for gap in range(self.scene.stages - 1):
            spans = []
            for net in self.nets:
                heights = self._heights(net, gap)
                if max(heights, default=0.0) - min(heights, default=0.0) > 0.5:
                    spans.append((net, min(heights), max(heights)))
            order = self._track_order(gap, [net for net, _, _ in spans])
            for place, net in enumerate(order):
                net.track[gap] = place
            self.channels[gap] = len(order)

    def _heights(self, net: _Net, gap: int) -> list[float]:
        """The heights that a net joins within a gap."""
        ends = [self.port[id(link)] for link in net.links if self.box[link.target].stage - 1 == gap]
        if net.first == gap:
            return [self.out[net.source], *ends, *([self._level_y(net)] if net.last > gap else [])]
        return [self._level_y(net), *ends] if ends else []

    def _track_order(self, gap: int, nets: list[_Net]) -> list[_Net]:
        """The order of tracks with the fewest crossings, by swapping neighbours."""
        order = sorted(nets, key=lambda net: -self.out[net.source])

        def crossings(left: _Net, right: _Net) -> int:
            """Lines cut if ``left`` has its track left of ``right``'s."""
            a, b = self._heights(left, gap), self._heights(right, gap)
            leaves = a[1:]  # these go on to the right, through the track of ``right``
            return sum(min(b) < y < max(b) for y in leaves) + (min(a) < b[0] < max(a))

        for _ in order:
            for i in range(len(order) - 1):
                if crossings(order[i + 1], order[i]) < crossings(order[i], order[i + 1]):
                    order[i], order[i + 1] = order[i + 1], order[i]
        return order

    # -- the result

    def _track_x(self, net: _Net, gap: int) -> float:
        return self.gap_left[gap] + (net.track.get(gap, 0) + 1) * TRACK

    def _wire(self, net: _Net, link: Link) -> Wire:
        area, target = self.boxes[net.source], self.boxes[link.target]
        end, gap, port = self.box[link.target].stage - 1, net.first, self.port[id(link)]
        corners = [Point(area.x + area.width, self.out[net.source])]
        if end > gap:
            corners += [Point(self._track_x(net, gap), y) for y in (corners[-1].y, self._level_y(net))]
        x = self._track_x(net, end)
        corners += [Point(x, corners[-1].y), Point(x, port), Point(target.x, port)]
        label = label_lines(link)
        widest = max((self.measure(line, LABEL, False) for line in label), default=0.0)
        at = Point(target.x - 12 - widest, port - 3)
        return Wire(link, tuple(_simplified(corners)), label, at)

    def sheet(self) -> Sheet:
        """Everything with its place."""
        lanes = tuple(
            (lane, Rectangle(MARGIN, top, self.width - 2 * MARGIN, bottom - top))
            for lane in self.scene.lanes
            for top, bottom in [self.lane_area[lane.key]]
        )
        stages = []
        for stage in range(self.scene.stages):
            areas = [self.boxes[box.key] for box in self.scene.boxes if box.stage == stage]
            if areas and 0 < stage < self.scene.stages - 1:
                stages.append((f"stage {stage}", areas[0].x + areas[0].width / 2))
        return Sheet(
            self.scene,
            self.width,
            self.height,
            lanes,
            tuple((box, self.boxes[box.key]) for box in self.scene.boxes),
            tuple(self._wire(net, link) for net in self.nets for link in net.links),
            tuple(stages),
        )


def _rows(scene: Scene) -> tuple[dict[str, int], list[int]]:
    """The row of every box, the lane of every row: a role keeps to a row, roles share one while they do not meet."""
    row_of: dict[str, int] = {}
    lane_of_row: list[int] = []
    for number, lane in enumerate(scene.lanes):
        rows: list[set[int]] = []
        roles: Mapping[str, list[Box]] = _by_role([box for box in scene.boxes if box.lane == lane.key])
        for boxes in roles.values():
            for group in [boxes] if len({b.stage for b in boxes}) == len(boxes) else [[b] for b in boxes]:
                stages = {box.stage for box in group}
                free = next((i for i, row in enumerate(rows) if not row & stages), len(rows))
                if free == len(rows):
                    rows.append(set())
                rows[free] |= stages
                row_of |= {box.key: len(lane_of_row) + free for box in group}
        lane_of_row += [number] * len(rows)
    return row_of, lane_of_row


def _by_role(boxes: Sequence[Box]) -> dict[str, list[Box]]:
    roles: dict[str, list[Box]] = {}
    for box in boxes:
        roles.setdefault(box.role, []).append(box)
    return roles


def _simplified(corners: Sequence[Point]) -> Iterator[Point]:
    """Without corners that are none."""
    for i, corner in enumerate(corners):
        before, after = corners[max(i - 1, 0)], corners[min(i + 1, len(corners) - 1)]
        level = before.y == corner.y == after.y
        upright = before.x == corner.x == after.x
        if i in (0, len(corners) - 1) or not (level or upright):
            yield corner
