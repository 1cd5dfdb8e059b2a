"""Small pieces of HTML, in which notebooks show reports, graphs, plans and records; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_ROWS = 200
"""The most rows that a table shows."""

CELL = "text-align:left;vertical-align:top;padding:0.15em 0.8em 0.15em 0"


def escaped(text: object) -> str:
    """A text as HTML shows it, in elements and in quoted attributes.

    >>> escaped("<b>'x' & y</b>")
    '&lt;b&gt;&#x27;x&#x27; &amp; y&lt;/b&gt;'
    """
    import html  # not at the top: `import hfdsl` is kept fast

    return html.escape(str(text))


def table(title: str, head: Sequence[object], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table with a title; of very many rows the first ones, and a line with the number of the others.

    >>> table("sizes", ("dim", "size"), [("B", 64)])[:45]
    '<div><p><b>sizes</b></p><table><thead><tr><th'
    """
    listed = list(rows)
    left_out = [f"... and {len(listed) - MAX_ROWS:,} more"] if len(listed) > MAX_ROWS else []
    body = "".join(_row("td", row) for row in listed[:MAX_ROWS])
    notes = "".join(f"<p>{escaped(text)}</p>" for text in (*left_out, note) if text)
    grid = f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>" if listed else ""
    return f"<div><p><b>{escaped(title)}</b></p>{grid}{notes}</div>"


def bars(title: str, spans: Sequence[tuple[str, float, float]], end: float) -> str:
    """Names with bars from a start to a stop, in seconds from 0 to ``end``, and how long each is.

    >>> "left:25.00%;width:50.00%" in bars("step", [("f", 1.0, 3.0)], 4.0)
    True
    """
    rows = []
    for name, start, stop in spans[:MAX_ROWS]:
        left, width = (100 * seconds / end if end > 0 else 0.0 for seconds in (start, stop - start))
        bar = f"position:absolute;left:{left:.2f}%;width:{width:.2f}%;height:0.8em;background:#4c78a8"
        area = f'<div style="position:relative;width:24em;height:0.8em"><div style="{bar}"></div></div>'
        cells = escaped(name), area, escaped(f"{stop - start:.3g} s")
        rows.append(f"<tr>{''.join(f'<td style={CELL!r}>{cell}</td>' for cell in cells)}</tr>")
    left_out = f"<p>... and {len(spans) - MAX_ROWS:,} more</p>" if len(spans) > MAX_ROWS else ""
    return f"<div><p><b>{escaped(title)}</b></p><table><tbody>{''.join(rows)}</tbody></table>{left_out}</div>"


def folded(summary: str, text: str) -> str:
    """A text that opens when its summary is clicked."""
    return f"<details><summary>{escaped(summary)}</summary>{preformatted(text)}</details>"


def preformatted(text: str) -> str:
    """A text with its line breaks and columns."""
    return f'<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{escaped(text)}</pre>'


def _row(tag: str, cells: Sequence[object]) -> str:
    written = (f'<{tag} style="{CELL}">{escaped(cell)}</{tag}>' for cell in cells)
    return f"<tr>{''.join(written)}</tr>"
