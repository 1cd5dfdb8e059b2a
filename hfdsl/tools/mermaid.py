"""Plans as Mermaid flowcharts, which GitHub, GitLab and many editors draw."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hfdsl.plan.plan import DRIVER
from hfdsl.tools.scene import Link, Scene, SceneBox

_SHAPES = {"input": ("([", "])"), "call": ("[", "]"), "function": ("(", ")"), "result": ("[/", "/]")}
_CLASSES = {
    "input": "fill:#f4f4f5,stroke:#71717a,color:#18181b",
    "call": "fill:#ffffff,stroke:#334155,color:#0f172a",
    "function": "fill:#fefce8,stroke:#a16207,color:#422006",
    "result": "fill:#f4f4f5,stroke:#71717a,color:#18181b",
}
_ARROWS = {"in process": "-.->"}


def flowchart(scene: Scene) -> str:
    """The text of a flowchart: a subgraph a pool, a node a call, an edge a value."""
    return "\n".join(_lines(scene)) + "\n"


def _lines(scene: Scene) -> Iterator[str]:
    yield "---"
    yield f"title: {json.dumps('  '.join(filter(None, (scene.title, scene.subtitle, *scene.queues))))}"
    yield "---"
    yield "flowchart LR"
    for number, lane in enumerate(scene.lanes):
        boxes = [box for box in scene.boxes if box.lane == lane.key]
        if lane.key == DRIVER:
            yield from (f"  {_box(box)}" for box in boxes)
            continue
        yield f'  subgraph pool{number}["{_text(f"{lane.title}: {lane.lines[0]}")}"]'
        yield from (f"    {_box(box)}" for box in boxes)
        yield "  end"
    for link in scene.links:
        yield f"  {link.source} {_ARROWS.get(link.transport, '-->')}{_label(link)} {link.target}"
    for kind, style in _CLASSES.items():
        keys = [box.key for box in scene.boxes if box.kind == kind]
        if keys:
            yield f"  classDef {kind}Box {style}"  # not the bare word: 'call' is one of Mermaid's own
            yield f"  class {','.join(keys)} {kind}Box"


def _box(box: SceneBox) -> str:
    left, right = _SHAPES[box.kind]
    stage = () if box.stage is None else (f"stage {box.stage}",)
    text = "<br/>".join(map(_text, (box.title, *box.lines, *stage)))
    return f'{box.key}{left}"{text}"{right}'


def _label(link: Link) -> str:
    text = "<br/>".join(filter(None, (_text(", ".join(link.columns)), _text(link.note))))
    return f'|"{text}"|' if text else ""


def _text(text: str) -> str:
    """Text within quotes.

    >>> _text('a "b" <c>')
    'a #quot;b#quot; #lt;c#gt;'
    """
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
