"""Drawings of plans: SVG and PNG for people, Mermaid for pages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from hfdsl.plan.plan import Plan
from hfdsl.tools.mermaid import flowchart
from hfdsl.tools.scene import Scene, folded, scene

TEXT = (".mmd", ".mermaid")
PICTURES = (".svg", ".png")


def mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flowchart: pools as subgraphs, calls as nodes, columns and bytes on the edges.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> class Judge(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def score(self, scores: Scores) -> Scores: ...
    >>> @hf.dataflow
    ... def judged(scores: Scores, judge: Judge) -> Scores:
    ...     return judge.score(scores)
    >>> judges = hf.ResourcePool([2], use_gpu=False, name="judges")
    >>> deployment = hf.Deployment(judge=hf.place(Judge, pool=judges))
    >>> print(mermaid(judged.compile(deployment, {B: 4})))
    ---
    title: "judged  B=4"
    ---
    flowchart LR
    ...
      subgraph pool1["judges: 2 CPU processes"]
        n1["judge.score<br/>DP_PROTO · dp=2"]
      end
      n0 -->|"reward<br/>16 B · from caller"| n1
    ...
    """
    return flowchart(scene(plan))


def picture(plan: Plan) -> str:
    """The plan as SVG, for a page."""
    from hfdsl.tools.layout import lay_out  # late, as below: Mermaid needs no layout
    from hfdsl.tools.picture import svg

    return svg(lay_out(folded(scene(plan))))


def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draw the plan into a file: pools side by side, stages from top to bottom, columns and bytes where they are read.

    The suffix picks the format: ``.svg`` and ``.mmd`` (Mermaid) need no library, ``.png`` needs the ``draw`` extra.

    Raises:
        ValueError: for another suffix.
        ImportError: where matplotlib is needed and missing.

    >>> from tempfile import TemporaryDirectory
    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Role(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def work(self, rows: Rows) -> Rows: ...
    >>> @hf.dataflow
    ... def flow(rows: Rows, role: Role) -> Rows:
    ...     return role.work(rows)
    >>> plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 8})
    >>> with TemporaryDirectory() as folder:
    ...     draw(plan, f"{folder}/plan.mmd")
    ...     print(Path(folder, "plan.mmd").read_text())
    ---
    title: "flow  B=8"
    ...
      n0 -->|"x<br/>32 B · from caller"| n1
    ...
    """
    draw_scene(scene(plan), path)


def draw_scene(scene: Scene, path: str | os.PathLike[str]) -> None:
    """Draw a scene into a file.

    Raises:
        ValueError: for another suffix.
        ImportError: where matplotlib is needed and missing.
    """
    file = check_path(path)
    if file.suffix.lower() in TEXT:
        file.write_text(flowchart(scene), encoding="utf-8")
        return
    from hfdsl.tools.layout import lay_out  # late, as the others: Mermaid needs no layout
    from hfdsl.tools.picture import svg

    sheet = lay_out(folded(scene))
    if file.suffix.lower() == ".svg":
        file.write_text(svg(sheet), encoding="utf-8")
        return
    from hfdsl.tools.raster import png

    png(sheet, file)


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if its suffix names a format that can be written here.

    Raises:
        ValueError: for a suffix that is no format.
        ImportError: where the format's library is missing.

    >>> check_path("plan.pdf")
    Traceback (most recent call last):
    ...
    ValueError: cannot draw to 'plan.pdf': the name must end in .svg, .png, .mmd or .mermaid
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix not in PICTURES + TEXT:
        raise ValueError(f"cannot draw to '{file}': the name must end in .svg, .png, .mmd or .mermaid")
    if suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise ImportError("drawing .png needs matplotlib: pip install 'hfdsl[draw]'; .svg and .mmd need no library")
    return file
