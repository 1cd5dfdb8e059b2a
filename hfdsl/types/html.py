"""Small pieces of HTML, in which notebooks show reports, graphs, plans and records; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_ROWS = 200
"""How many rows a table shows."""

CELL = "text-align:left;vertical-align:top;padding:0.15em 0.8em 0.15em 0"


def escaped(text: object) -> str:
    """A text as HTML shows it, in elements and in quoted attributes.

    >>> escaped("<b>'x' & y</b>")
    '&lt;b&gt;&#x27;x&#x27; &amp; y&lt;/b&gt;'
    """
    import html  # not at the top: `import hfdsl` is kept fast

    return html.escape(str(text))


def table(title: str, head: Sequence[object], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table with a title; of very many rows the first ones, with a line that says how many are left out.

    >>> table("sizes", ("dim", "size"), [("B", 64)])[:45]
    '<div><p><b>sizes</b></p><table><thead><tr><th'
    """
    listed = list(rows)
    left_out = [f"... and {len(listed) - MAX_ROWS:,} more"] if len(listed) > MAX_ROWS else []
    body = "".join(_row("td", row) for row in listed[:MAX_ROWS])
    notes = "".join(f"<p>{escaped(text)}</p>" for text in (*left_out, note) if text)
    grid = f"<table><thead>{_row('th', head)}</thead><tbody>{body}</tbody></table>" if listed else ""
    return f"<div><p><b>{escaped(title)}</b></p>{grid}{notes}</div>"


def preformatted(text: str) -> str:
    """A text with its line breaks and columns."""
    return f'<pre style="white-space:pre;line-height:1.3">{escaped(text)}</pre>'


def _row(tag: str, cells: Sequence[object]) -> str:
    written = (f'<{tag} style="{CELL}">{escaped(cell)}</{tag}>' for cell in cells)
    return f"<tr>{''.join(written)}</tr>"
