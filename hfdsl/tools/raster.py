"""A sheet as PNG, by matplotlib, whose own font makes it the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Polygon

from hfdsl.tools.layout import Sheet, Text
from hfdsl.tools.picture import DASHES, INK, MUTED, PAPER, Dot, Line, Panel, Shape, shapes, tip_of

FONT = "DejaVu Sans"
DPI = 144  # two dots a pixel


def png(sheet: Sheet, path: Path) -> None:
    """Draw the sheet into a file."""
    figure = Figure(figsize=(sheet.width / 72, sheet.height / 72), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0))
    axes.set_axis_off()
    for order, shape in enumerate(shapes(sheet)):
        _add(axes, shape, order)
    figure.savefig(path, dpi=DPI)


def _add(axes: Axes, shape: Shape, order: int) -> None:
    match shape:
        case Panel(area, radius, fill, edge):
            style = f"round,pad=0,rounding_size={min(radius, area.height / 2)}"
            corner, width, height = (area.x, area.y), area.width, area.height
            panel = FancyBboxPatch(
                corner, width, height, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=0.8, zorder=order
            )
            axes.add_patch(panel)
        case Line(points, color, dashed):
            xs, ys = zip(*points, strict=True)
            dashes: Any = (0, DASHES) if dashed else "solid"
            axes.plot(xs, ys, color=color, linewidth=1.4, linestyle=dashes, zorder=order, dash_capstyle="butt")
            axes.add_patch(Polygon(tip_of(points), closed=True, facecolor=color, edgecolor="none", zorder=order))
        case Dot(at, color):
            axes.add_patch(Circle(at, 2.5, facecolor=color, edgecolor="none", zorder=order))
        case Text(at, text, size, bold, muted, right):
            axes.text(
                at.x,
                at.y,
                text,
                fontsize=size * 0.95,
                color=MUTED if muted else INK,
                family=FONT,
                weight="bold" if bold else "normal",
                ha="right" if right else "left",
                va="baseline",
                parse_math=False,
                zorder=order,
            )
