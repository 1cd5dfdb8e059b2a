"""A scene laid out for a page: pools side by side, time from top to bottom, every value a line that covers no text.

::

    lane of pool a          lane of pool b
    | [ generate     ]      |                      row of stage 1
    |   '------.------------.                      corridor below it: one level for each value made in the row
    |-> [ log_probs  ]      |-> [ score        ]   row of stage 2
    gutter                  gutter                 one track for each value that is read further down

A value leaves its box at the bottom, follows its level of the corridor to the gutters of the lanes that read it, and
goes down a track of each to its readers. Corridors run across the whole page, gutters from its top to its bottom, and
all boxes lie between them. So a line meets no box but at its ends, and two values never share a level or, at one
height, a track. The names of columns stand in the box that reads them, beside the tip of the line. Lengths are pixels;
y grows downward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from hfdsl.plan.plan import DRIVER
from hfdsl.tools.scene import Lane, Link, Scene, SceneBox

PAGE = 830.0  # the column in which GitHub shows a README
HEADING, TITLE, BODY = 18.0, 14.0, 12.0  # font sizes
LEADING = 1.35  # line height over font size
PAD = 10.0  # inside a box
TRACK = 8.0  # between two parallel lines
MARGIN = 16.0
GAP = 12.0  # between two lanes, and above and below boxes
HEAD = 44.0  # above the first row: the title
NARROW, WIDE = 130.0, 270.0  # texts in boxes, unless a title is wider
LABEL_LINES = 3
LINES = "moves to another process", "is read in the process that made it"
COLORS = "One color is one value on its way to its readers."


class Point(NamedTuple):
    """A place on the sheet."""

    x: float
    y: float


class Rectangle(NamedTuple):
    """An area: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float


class Text(NamedTuple):
    """A line of text: where its baseline begins, or ends for ``right``."""

    at: Point
    text: str
    size: float = BODY
    bold: bool = False
    muted: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Wire:
    """A drawn link: its corners from box to box."""

    link: Link
    corners: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Everything with its place."""

    width: float
    height: float
    lanes: tuple[tuple[Lane, Rectangle], ...]
    boxes: tuple[tuple[SceneBox, Rectangle], ...]
    wires: tuple[Wire, ...]
    texts: tuple[Text, ...]
    samples: tuple[Point, Point]
    """Where the legend's solid and dashed line begin."""


def lay_out(scene: Scene) -> Sheet:
    """Give everything its place."""
    return _Layout(scene).sheet()


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About the width of a text in a wide sans-serif face; in most faces it takes less.

    >>> text_width("ill", 10) < text_width("own", 10) < text_width("OWN", 10)
    True
    """
    narrow, wide = set("iljtfrI.,:;|'()[] ·"), set("mwMW@%+=#×–")
    em = sum(0.4 if char in narrow else 0.9 if char in wide else 0.72 if char.isupper() else 0.62 for char in text)
    return em * size * (1.1 if bold else 1)


def wrap(words: Sequence[str], width: float, separator: str = ", ", most: int = LABEL_LINES) -> tuple[str, ...]:
    """Words in lines that are at most ``width`` wide, unless one word is wider; words beyond the last line are counted.

    >>> wrap(["ids", "mask", "log_probs"], width=80)
    ('ids, mask,', 'log_probs')
    >>> wrap(["ids", "mask", "log_probs", "values"], width=80, most=2)
    ('ids, mask,', '+2 more')
    """
    lines: list[list[str]] = []
    for word in words:
        if lines and text_width(separator.join([*lines[-1], word]) + separator, BODY) <= width:
            lines[-1].append(word)
        else:
            lines.append([word])
    if len(lines) > most:
        lines = [*lines[: most - 1], [f"+{sum(map(len, lines[most - 1 :]))} more"]]
    broken = [separator.join(line) for line in lines]
    return (*(f"{line}{separator.rstrip()}" for line in broken[:-1]), *broken[-1:])


@dataclass(slots=True)
class _Net:
    """The lines that leave one box: the height of its level, and by lane the x of its track."""

    source: SceneBox
    links: list[Link]
    level: float = 0.0
    track: dict[str, float] = field(default_factory=dict)


class _Layout:
    """One layout in progress: first all heights, with x relative to the boxes of a lane; then where these begin."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.box = {box.key: box for box in scene.boxes}
        self.lane = _lane_of_boxes(scene)
        self.lanes = [lane for lane in scene.lanes if lane.key in self.lane.values()]
        self.incoming = {
            box.key: sorted(
                (link for link in scene.links if link.target == box.key), key=lambda link: self.box[link.source].level
            )
            for box in scene.boxes
        }
        leaving = {box.key: [link for link in scene.links if link.source == box.key] for box in scene.boxes}
        self.nets = [_Net(self.box[key], links) for key, links in leaving.items() if links]
        self.inner = {lane.key: self._inner_width(lane) for lane in self.lanes}
        self.texts: list[tuple[str, Text]] = []
        self.areas: dict[str, Rectangle] = {}
        self.port: dict[int, float] = {}
        self.lane_top, self.lane_bottom, self.end = self._rows_from_top()
        self.gutter = {lane.key: self._assign_tracks(lane) for lane in self.lanes}

    def _inner_width(self, lane: Lane) -> float:
        """The width of the texts of a lane: as much as they need, up to the lane's share of the page."""
        boxes = [box for box in self.scene.boxes if self.lane[box.key] == lane.key]
        links = [link for box in boxes for link in self.incoming[box.key]]
        fixed = [text_width(box.title, TITLE, bold=True) + text_width(_stage(box), BODY) + PAD for box in boxes]
        fixed += [text_width(text, BODY) for box in boxes for text in box.lines]
        fixed += [text_width(text, BODY) for link in links for text in (*link.columns, _note(link))]
        wanted_widths = [text_width(text, BODY) for text in (*lane.lines, *map(_whole_label, links))]
        share = (PAGE - 2 * MARGIN) / len(self.lanes) - 8 * TRACK - 2 * PAD
        return max(*fixed, min(max(wanted_widths), WIDE, share), NARROW)

    # -- heights

    def _rows_from_top(self) -> tuple[float, float, float]:
        """Place rows, and the corridors below them; gives the top and the bottom of lanes, and the end of all."""
        rows = _rows(self.scene, self.lane)
        inside = [i for i, row in enumerate(rows) if any(box.kind in ("call", "function") for box in row)] or [0]
        y, top, bottom = HEAD, 0.0, 0.0
        for number, row in enumerate(rows):
            if number == inside[0]:
                top, y = y, y + self._lane_heads(y)
            y += GAP
            y += max(self._place(box, y) for box in row)
            leaving = [net for net in self.nets if net.source in row]
            # The rightmost box gets the highest level: its line to the left passes above the drops of the others.
            for place, net in enumerate(reversed(leaving)):
                net.level = y + GAP + place * TRACK
            y += GAP + len(leaving) * TRACK
            if number == inside[-1]:
                bottom = y
        return top, bottom, y + GAP

    def _lane_heads(self, top: float) -> float:
        heights = []
        for lane in self.lanes:
            y = GAP + TITLE
            self._write(lane.key, Text(Point(0, top + y), lane.title, TITLE, bold=True))
            for text in (part for line in lane.lines for part in wrap(line.split(), self.inner[lane.key], " ")):
                y += BODY * LEADING
                self._write(lane.key, Text(Point(0, top + y), text, muted=True))
            heights.append(y)
        return max(heights)

    def _place(self, box: SceneBox, top: float) -> float:
        """Write into a box, with a port next to each of its reads; return its height."""
        lane, right = self.lane[box.key], PAD + self.inner[self.lane[box.key]]
        y = top + PAD + TITLE - 3
        self._write(lane, Text(Point(PAD, y), box.title, TITLE, bold=True))
        self._write(lane, Text(Point(right, y), _stage(box), muted=True, right=True))
        for line in box.lines:
            y += BODY * LEADING
            self._write(lane, Text(Point(PAD, y), line, muted=True))
        for link in self.incoming[box.key]:
            y += PAD / 2
            self.port[id(link)] = y + BODY * LEADING - BODY / 3
            lines = wrap(link.columns, self.inner[lane])
            for line in lines:
                y += BODY * LEADING
                self._write(lane, Text(Point(PAD, y), line))
            note = _note(link)
            if not lines or (note and text_width(f"{lines[-1]}  {note}", BODY) > self.inner[lane]):
                y += BODY * LEADING
            self._write(lane, Text(Point(right, y), note, muted=True, right=True))
        self.areas[box.key] = Rectangle(0, top, right + PAD, y + PAD - top)
        return y + PAD - top

    def _write(self, lane: str, text: Text) -> None:
        if text.text:
            self.texts.append((lane, text))

    # -- tracks, then the rest

    def _assign_tracks(self, lane: Lane) -> int:
        """Put every net on the free track nearest to its readers, short ones first; gives the number of tracks."""
        runs = []
        for net in self.nets:
            ports = [self.port[id(link)] for link in net.links if self.lane[link.target] == lane.key]
            if ports:
                runs.append((max(ports) - net.level, net.level, net))
        tracks: list[list[tuple[float, float]]] = []
        for length, start, net in sorted(runs, key=lambda run: run[:2]):
            free = (i for i, track in enumerate(tracks) if all(start + length < a or b < start for a, b in track))
            place = next(free, len(tracks))
            tracks[place:] = tracks[place:] or [[]]
            tracks[place].append((start, start + length))
            net.track[lane.key] = -(place + 2) * TRACK
        return len(tracks)

    def sheet(self) -> Sheet:
        """Everything with its place."""
        x, begin, lanes = MARGIN, {}, []
        for lane in self.lanes:
            gutter, width = (self.gutter[lane.key] + 2) * TRACK, self.inner[lane.key] + 2 * PAD
            begin[lane.key] = x + gutter
            area = Rectangle(x, self.lane_top, gutter + width + GAP, self.lane_bottom - self.lane_top)
            lanes.append((lane, area))
            x += area.width + GAP
        texts = [text._replace(at=Point(begin[lane] + text.at.x, text.at.y)) for lane, text in self.texts]
        areas = {key: area._replace(x=begin[self.lane[key]] + area.x) for key, area in self.areas.items()}

        def wire(net: _Net, link: Link) -> Wire:
            source, target, port = areas[net.source.key], areas[link.target], self.port[id(link)]
            out, track = source.x + 2 * PAD, begin[self.lane[link.target]] + net.track[self.lane[link.target]]
            down = Point(out, source.y + source.height), Point(out, net.level)
            return Wire(link, (*down, Point(track, net.level), Point(track, port), Point(target.x, port)))

        subtitle = MARGIN + text_width(self.scene.title, HEADING, bold=True) + PAD
        texts += [
            Text(Point(MARGIN, 32), self.scene.title, HEADING, bold=True),
            Text(Point(subtitle, 32), self.scene.subtitle, muted=True),
        ]
        notes = (*LINES, f"{COLORS} {_stages(self.scene)}", *self.scene.queues)
        legend = [Point(MARGIN + (34 if i < len(LINES) else 0), self.end + BODY + i * 18) for i in range(len(notes))]
        texts += [Text(at, line, muted=True) for at, line in zip(legend, notes, strict=True)]
        ends = [x - GAP, *(text.at.x + text_width(text.text, text.size, text.bold) for text in texts if not text.right)]
        return Sheet(
            width=max(ends) + MARGIN,
            height=legend[-1].y + MARGIN,
            lanes=tuple(lanes),
            boxes=tuple((box, areas[box.key]) for box in self.scene.boxes),
            wires=tuple(wire(net, link) for net in self.nets for link in net.links),
            texts=tuple(texts),
            samples=(Point(MARGIN, legend[0].y - 4), Point(MARGIN, legend[1].y - 4)),
        )


def _stage(box: SceneBox) -> str:
    if box.kind in ("input", "result"):
        return ""
    if box.stage is not None:
        return f"stage {box.stage}"
    return f"stage {box.level}" if box.until is None else f"stages {box.level}–{box.until}"


def _stages(scene: Scene) -> str:
    return "Stages run side by side." if scene.queues else "Boxes of one stage may run at the same time."


def _note(link: Link) -> str:
    """Bytes, and the transport where the line does not show it already."""
    shown = ("in process", "from caller", "to caller")
    names = [name for name in link.transport.split(" / ") if name not in shown]
    return " · ".join(filter(None, (link.amount, *names)))


def _whole_label(link: Link) -> str:
    return f"{', '.join(link.columns)},  {_note(link)}"


def _lane_of_boxes(scene: Scene) -> dict[str, str]:
    """The lane that shows each box: inputs and results stand in that of what reads or makes them."""
    lanes = {box.key: box.lane for box in scene.boxes}
    pools = [lane.key for lane in scene.lanes if lane.key != DRIVER]
    for box in scene.boxes:
        if box.kind in ("input", "result"):
            beside = [link.target for link in scene.links if link.source == box.key]
            beside += [link.source for link in scene.links if link.target == box.key]
            lanes[box.key] = next((lanes[key] for key in beside if lanes[key] in pools), (*pools, DRIVER)[0])
    return lanes


def _rows(scene: Scene, lane: dict[str, str]) -> list[list[SceneBox]]:
    """Boxes of one level of the plan in rows: one of each lane in a row."""
    rows = []
    for _, group in groupby(sorted(scene.boxes, key=lambda box: box.level), key=lambda box: box.level):
        stacks: dict[str, list[SceneBox]] = {}
        for box in group:
            stacks.setdefault(lane[box.key], []).append(box)
        deepest = max(map(len, stacks.values()))
        rows += [[stack[i] for stack in stacks.values() if i < len(stack)] for i in range(deepest)]
    return rows
