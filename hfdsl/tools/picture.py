"""The shapes that a sheet is drawn of, and the sheet as SVG, which needs no library."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from hfdsl.plan.plan import DRIVER
from hfdsl.tools.layout import Point, Rectangle, Sheet, Text, Wire

FACES = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, MUTED, PAPER = "#1e293b", "#64748b", "#ffffff"
LANES = ("#eef4fb", "#f1f8ef", "#fdf3e7", "#f6f0fa", "#fdeef0", "#eef8f7")
DRIVER_LANE = "#f4f4f5"
LINES = ("#1f77b4", "#c2571a", "#2e8b57", "#8e4ec6", "#b5365f", "#7a6a00", "#0f8b8d", "#555555")
"""One color for all that leaves one box."""
BOXES = {"input": "#e4e4e7", "result": "#e4e4e7", "call": "#ffffff", "function": "#fef9c3"}
DASHES = (5, 3)


class Panel(NamedTuple):
    """A rectangle with round corners."""

    area: Rectangle
    radius: float
    fill: str
    edge: str
    hint: str = ""


class Line(NamedTuple):
    """A line along level and upright pieces, with a tip at its end."""

    points: tuple[Point, ...]
    color: str
    dashed: bool = False
    hint: str = ""


class Dot(NamedTuple):
    """A branching point of a line."""

    at: Point
    color: str


Shape: TypeAlias = Panel | Line | Dot | Text


def svg(sheet: Sheet) -> str:
    """The sheet as SVG: text stays text, and what a line carries is shown where the mouse rests on it."""
    size = f"{sheet.width:.0f} {sheet.height:.0f}"
    width, height = size.split()
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {size}"'
    return "\n".join([f'{head} font-family="{FACES}">', *map(_element, shapes(sheet)), "</svg>", ""])


def shapes(sheet: Sheet) -> Iterator[Shape]:
    """The elements of a sheet, from bottom to top."""
    yield Panel(Rectangle(0, 0, sheet.width, sheet.height), 8, PAPER, "none")
    for number, (lane, area) in enumerate(sheet.lanes):
        yield Panel(area, 10, DRIVER_LANE if lane.key == DRIVER else LANES[number % len(LANES)], "#cbd5e1")
    names = {box.key: box.title for box, _ in sheet.boxes}
    sources = list(dict.fromkeys(wire.link.source for wire in sheet.wires))
    colors = {source: LINES[i % len(LINES)] for i, source in enumerate(sources)}
    for wire in sorted(sheet.wires, key=lambda wire: not wire.link.in_place):  # solid lines over dashed ones
        link = wire.link
        hint = f"{names[link.source]} → {names[link.target]}: {', '.join(link.columns)}  {link.note}".strip()
        yield Line(wire.corners, colors[link.source], link.in_place, hint=hint)
    for source, color in colors.items():
        wires = [wire for wire in sheet.wires if wire.link.source == source]
        yield from (Dot(point, color) for point in sorted(_branches(wires)))
    for box, area in sheet.boxes:
        yield Panel(
            area, 14 if box.kind in ("input", "result") else 5, BOXES[box.kind], "#475569", ", ".join(box.calls)
        )
    yield from sheet.texts
    for sample, dashed in zip(sheet.samples, (False, True), strict=True):
        yield Line((sample, Point(sample.x + 26, sample.y)), INK, dashed)


def _branches(wires: list[Wire]) -> set[Point]:
    """The points where one of these lines leaves another one in its middle."""
    corners = {corner for wire in wires for corner in wire.corners[1:-1]}
    pieces = [piece for wire in wires for piece in pairwise(wire.corners)]
    return {corner for corner in corners if any(_within(corner, *piece) for piece in pieces)}


def _within(point: Point, start: Point, end: Point) -> bool:
    xs, ys = sorted((start.x, end.x)), sorted((start.y, end.y))
    return point not in (start, end) and xs[0] <= point.x <= xs[1] and ys[0] <= point.y <= ys[1]


def _element(shape: Shape) -> str:
    match shape:
        case Panel(area, radius, fill, edge, hint):
            x, y, width, height = map(_number, area)
            style = f'rx="{radius}" fill="{fill}" stroke="{edge}"'
            return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {style}>{_hint(hint)}</rect>'
        case Line(points, color, dashed, hint):
            dashes = f' stroke-dasharray="{DASHES[0]} {DASHES[1]}"' if dashed else ""
            line = f'<polyline points="{_points(points)}" stroke="{color}" stroke-width="1.5"{dashes} fill="none"/>'
            return f'<g>{_hint(hint)}{line}<polygon points="{_points(tip_of(points))}" fill="{color}"/></g>'
        case Dot(at, color):
            return f'<circle cx="{_number(at.x)}" cy="{_number(at.y)}" r="2.5" fill="{color}"/>'
        case Text(at, text, size, bold, muted, right):
            style = f'font-size="{_number(size)}" fill="{MUTED if muted else INK}"'
            style += ' font-weight="bold"' * bold + ' text-anchor="end"' * right
            return f'<text x="{_number(at.x)}" y="{_number(at.y)}" {style}>{escape(text)}</text>'


def tip_of(points: tuple[Point, ...]) -> tuple[Point, Point, Point]:
    """The arrowhead of a line that ends to the right."""
    x, y = points[-1]
    return Point(x, y), Point(x - 7, y - 3.5), Point(x - 7, y + 3.5)


def _points(points: tuple[Point, ...]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(length: float) -> str:
    return f"{length:.1f}".removesuffix(".0")


def _hint(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
