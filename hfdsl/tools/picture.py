"""A sheet as SVG or PNG, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path as FilePath
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Polygon
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from hfdsl.plan.plan import DRIVER
from hfdsl.tools.layout import (
    BODY,
    FOOT,
    HEAD,
    LABEL,
    LEADING,
    LEGEND,
    MARGIN,
    PAD,
    TITLE,
    Point,
    Rectangle,
    Sheet,
    Wire,
    lay_out,
)
from hfdsl.tools.scene import Box, Lane, Scene

FONT = "DejaVu Sans"  # comes with matplotlib: the same picture on every machine
INK, GREY, PAPER = "#1e293b", "#64748b", "#ffffff"
LANES = ("#eef4fb", "#f1f8ef", "#fdf3e7", "#f6f0fa", "#fdeef0", "#eef8f7")
DRIVER_LANE = "#f4f4f5"
LINES = ("#1f77b4", "#c2571a", "#2e8b57", "#8e4ec6", "#b5365f", "#7a6a00", "#0f8b8d", "#555555")
"""One colour for all that leaves one box."""
SOLID: Any = "solid"
DASHES: dict[str, Any] = {"in process": (0, (4, 2.5))}
BOXES = {"input": "#e4e4e7", "result": "#e4e4e7", "call": "#ffffff", "function": "#fef9c3"}
DPI = 144


def save(scene: Scene, path: FilePath) -> None:
    """Draw a scene into a file; its suffix says in which format."""
    sheet = lay_out(scene, _measure)
    figure = Figure(figsize=(sheet.width / 72, sheet.height / 72), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0))
    axes.set_axis_off()
    _heading(axes, sheet)
    for number, (lane, area) in enumerate(sheet.lanes):
        _lane(axes, lane, area, DRIVER_LANE if lane.key == DRIVER else LANES[number % len(LANES)])
    _wires(axes, sheet)
    for box, area in sheet.boxes:
        _box(axes, box, area)
    _legend(axes, sheet)
    svg = path.suffix.lower() == ".svg"
    # Text stays text, so that an SVG can be searched; nothing in the file tells when it was made.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hfdsl", "path.sketch": None}):
        figure.savefig(path, dpi=DPI, facecolor=PAPER, metadata={"Date": None} if svg else None)


@cache
def _measure(text: str, size: float, bold: bool) -> float:
    """The width of a text in points."""
    if not text.strip():
        return 0.0
    font = FontProperties(family=FONT, weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().width)


def _text(axes: Axes, x: float, y: float, text: str, size: float = BODY, colour: str = INK, **style: Any) -> None:
    axes.text(x, y, text, fontsize=size, color=colour, family=FONT, parse_math=False, **{"va": "baseline", **style})


def _rounded(axes: Axes, area: Rectangle, radius: float, **style: Any) -> None:
    shape = f"round,pad=0,rounding_size={radius}"
    axes.add_patch(FancyBboxPatch((area.x, area.y), area.width, area.height, boxstyle=shape, **style))


def _heading(axes: Axes, sheet: Sheet) -> None:
    _text(axes, MARGIN, 30, sheet.scene.title, 15, weight="bold")
    _text(axes, MARGIN + _measure(sheet.scene.title, 15, True) + 14, 30, sheet.scene.subtitle, 9, GREY)
    for name, x in sheet.stages:
        _text(axes, x, HEAD - 4, name, BODY, GREY, ha="center")


def _lane(axes: Axes, lane: Lane, area: Rectangle, colour: str) -> None:
    _rounded(axes, area, 10, facecolor=colour, edgecolor="#cbd5e1", linewidth=0.8, zorder=0)
    height = TITLE * LEADING + len(lane.lines) * BODY * LEADING
    y = area.y + (area.height - height) / 2 + TITLE
    _text(axes, area.x + PAD, y, lane.title, TITLE, weight="bold")
    y += TITLE * LEADING
    for line in lane.lines:
        _text(axes, area.x + PAD, y, line, BODY, GREY)
        y += BODY * LEADING


def _box(axes: Axes, box: Box, area: Rectangle) -> None:
    radius = {"input": area.height / 2.5, "result": area.height / 2.5}.get(box.kind, 5)
    _rounded(axes, area, min(radius, 14), facecolor=BOXES[box.kind], edgecolor="#475569", linewidth=0.9, zorder=4)
    middle = area.x + area.width / 2
    y = area.y + (area.height - TITLE * LEADING - len(box.lines) * BODY * LEADING) / 2 + TITLE
    _text(axes, middle, y, box.title, TITLE, ha="center", weight="bold", zorder=5)
    for line in box.lines:
        y += BODY * LEADING + 1
        _text(axes, middle, y, line, BODY, GREY, ha="center", zorder=5)


def _wires(axes: Axes, sheet: Sheet) -> None:
    sources = list(dict.fromkeys(wire.link.source for wire in sheet.wires))
    for wire in sorted(sheet.wires, key=lambda wire: wire.link.transport not in DASHES):  # solid lines over dashed ones
        colour = LINES[sources.index(wire.link.source) % len(LINES)]
        dashes = DASHES.get(wire.link.transport, SOLID)
        # White below, so that where two lines cross one is seen to pass over the other.
        for paint, width, style in ((PAPER, 3.6, SOLID), (colour, 1.3, dashes)):
            path = PathPatch(_path(wire.corners), fill=False, edgecolor=paint, linewidth=width, linestyle=style)
            path.set(zorder=2, capstyle="butt", alpha=0.7 if paint == PAPER else 1)
            axes.add_patch(path)
        tip = wire.corners[-1]
        head = [(tip.x, tip.y), (tip.x - 7, tip.y - 3.2), (tip.x - 7, tip.y + 3.2)]
        axes.add_patch(Polygon(head, closed=True, facecolor=colour, edgecolor="none", zorder=3))
        for i, line in enumerate(reversed(wire.label)):
            tint = GREY if i == 0 and line == wire.link.note else INK
            _text(axes, wire.label_at.x, wire.label_at.y - i * LABEL * LEADING, line, LABEL, tint, zorder=6)
    for source in sources:
        colour = LINES[sources.index(source) % len(LINES)]
        for point in _branches([wire for wire in sheet.wires if wire.link.source == source]):
            axes.add_patch(Circle(point, 2.1, facecolor=colour, edgecolor="none", zorder=3))


def _path(corners: Sequence[Point], radius: float = 4.0) -> Path:
    """Straight lines with rounded corners."""
    points, codes = [corners[0]], [Path.MOVETO]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        points += [_towards(corner, before, radius), corner, _towards(corner, after, radius)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*points, corners[-1]], [*codes, Path.LINETO])


def _towards(start: Point, end: Point, distance: float) -> Point:
    length = abs(end.x - start.x) + abs(end.y - start.y)
    share = min(distance, length / 2) / length if length else 0.0
    return Point(start.x + (end.x - start.x) * share, start.y + (end.y - start.y) * share)


def _branches(wires: Sequence[Wire]) -> set[Point]:
    """Where a line of these leaves another one in its middle."""
    found = set()
    for wire in wires:
        for corner in wire.corners[1:-1]:
            for other in wires:
                for start, end in zip(other.corners, other.corners[1:], strict=False):
                    if other is not wire and corner not in (start, end) and _on(corner, start, end):
                        found.add(corner)
    return found


def _on(point: Point, start: Point, end: Point) -> bool:
    xs, ys = sorted((start.x, end.x)), sorted((start.y, end.y))
    return xs[0] <= point.x <= xs[1] and ys[0] <= point.y <= ys[1]


def _legend(axes: Axes, sheet: Sheet) -> None:
    x, y = MARGIN, sheet.height - FOOT + 14
    for style, text in ((SOLID, LEGEND[0]), (DASHES["in process"], LEGEND[1])):
        axes.add_line(Line2D([x, x + 26], [y - 3, y - 3], color=INK, linewidth=1.3, linestyle=style))
        _text(axes, x + 32, y, text, BODY, GREY)
        x += 32 + _measure(text, BODY, False) + 24
    _text(axes, MARGIN, y + 16, LEGEND[2], BODY, GREY)
