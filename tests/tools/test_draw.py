"""Drawings: the scene of a plan, its Mermaid text, and files that are what their names say."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.tools.cli import main
from hfdsl.tools.draw import draw, mermaid
from hfdsl.tools.layout import PAGE
from hfdsl.tools.scene import folded, scene
from hfdsl.tools.target import load

SVG = "{http://www.w3.org/2000/svg}"

matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")


@pytest.fixture
def plan(program: str) -> CompiledPlan:
    return load("shouting.py:pondering").deployed("draw").compile()


@pytest.fixture
def two_results(program: str) -> CompiledPlan:
    return load("shouting.py:experiment").deployed("draw").compile()


def test_the_scene_has_pools_steps_and_ends(plan: CompiledPlan) -> None:
    shown = scene(plan)
    assert [lane.title for lane in shown.lanes] == ["driver", "train", "score"]
    assert shown.lanes[1].lines == ("4 CPU processes on 2 nodes", "actor: Actor, dp=2 tp=2")
    assert [(box.kind, box.title, box.level) for box in shown.boxes] == [
        ("input", "questions", 0),
        ("call", "actor.think", 1),
        ("call", "judge.weigh", 2),
        ("result", "result", 3),
    ]
    assert [(link.columns, link.note) for link in shown.links] == [
        (("text",), "from caller"),  # objects have no declared size
        (("text", "hidden"), "8.0 KiB · object store"),
        (("length",), "to caller"),
    ]


def test_every_result_has_a_box(two_results: CompiledPlan) -> None:
    results = [box for box in scene(two_results).boxes if box.kind == "result"]
    assert [(box.title, box.lines) for box in results] == [
        ("result 1", ("Questions · B rows",)),
        ("result 2", ("Lengths · B rows",)),
    ]


def test_sizes_that_are_not_known_are_shown_so(program: str, write: Callable[[str, str], str]) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\nunsized = hf.Experiment(ponder, deployment)\n")
    links = scene(load("shouting.py:unsized").deployed("draw").compile()).links
    assert links[1].amount == "unknown size"


def test_mermaid_groups_steps_by_pool(plan: CompiledPlan) -> None:
    lines = [line.strip() for line in mermaid(plan).splitlines()]
    assert lines[:4] == ["---", 'title: "ponder  B=4  P=256"', "---", "flowchart LR"]
    pool = lines.index('subgraph pool1["train: 4 CPU processes on 2 nodes"]')
    assert lines[pool + 1 : pool + 3] == ['n2["actor.think<br/>3D_PROTO · dp=2 tp=2"]', "end"]
    assert 'n0(["questions<br/>Questions · B rows"])' in lines
    assert 'n2 -->|"text, hidden<br/>8.0 KiB · object store"| n3' in lines
    assert "class n2,n3 callBox" in lines  # 'call' alone is a word of Mermaid's


def test_mermaid_text_cannot_end_its_quotes(write: Callable[[str, str], str], program: str) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write('\nodd = hf.ResourcePool([2], name="a\\"<b>")\n')
        file.write("oddly = hf.Deployment(actor=hf.place(Actor, pool=odd), judge=hf.place(Judge, pool=odd))\n")
        file.write("quoted = hf.Experiment(shout, oddly, dims={B: 4})\n")
    assert '["a#quot;#lt;b#gt;: 2 GPUs"]' in mermaid(load("shouting.py:quoted").deployed("draw").compile())


def test_svg_is_xml_with_the_names_as_text(plan: CompiledPlan, tmp_path: Path) -> None:
    draw(plan, tmp_path / "plan.svg")
    root = ET.fromstring((tmp_path / "plan.svg").read_text(encoding="utf-8"))  # our own file
    assert root.tag == f"{SVG}svg"
    texts = {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")}
    hints = {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}title")}
    assert {"ponder", "train", "score", "actor.think", "judge.weigh", "text, hidden"} <= texts
    assert "8.0 KiB · object store" in texts
    assert "actor.think → judge.weigh: text, hidden  8.0 KiB · object store" in hints


def test_a_drawing_is_the_same_every_time(plan: CompiledPlan, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(plan, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@matplotlib
def test_png_is_a_picture(plan: CompiledPlan, tmp_path: Path) -> None:
    from matplotlib.image import imread

    draw(plan, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    height, width, _ = imread(tmp_path / "plan.png").shape
    assert min(width, height) > 600


def test_the_picture_of_the_readme_can_be_read_in_its_column() -> None:
    root = ET.fromstring((Path(__file__).parents[2] / "docs" / "grpo.svg").read_text(encoding="utf-8"))
    scale = min(1.0, PAGE / float(root.attrib["width"]))
    sizes = [float(element.attrib["font-size"]) * scale for element in root.iter(f"{SVG}text")]
    assert len(sizes) > 40
    assert min(sizes) >= 10


def test_the_picture_of_the_readme_is_the_demo_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    assert main(["draw", "examples/grpo_reasoning.py:experiment", "-o", str(tmp_path / "grpo.svg")]) == 0
    assert (tmp_path / "grpo.svg").read_bytes() == (root / "docs" / "grpo.svg").read_bytes()


def test_equal_calls_of_several_levels_share_a_box(write: Callable[[str, str], str], program: str) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\n\n@hf.dataflow\n")
        file.write("def thrice(questions: Questions, actor: Actor, judge: Judge) -> dict[str, list[Lengths]]:\n")
        file.write("    thoughts = actor.think(questions)\n")
        file.write('    return {"lengths": [judge.weigh(thoughts) for _ in range(3)]}\n\n')
        file.write("\nthrice_drawn = hf.Experiment(thrice, deployment, dims={B: 4, P: 256})\n")
    shown = scene(load("shouting.py:thrice_drawn").deployed("draw").compile())
    together = folded(shown)
    [box, result] = [box for box in together.boxes if box.calls]
    assert (box.title, box.calls) == ("judge.weigh ×3", ("judge.weigh#1", "judge.weigh#2", "judge.weigh#3"))
    assert (box.level, box.until) == (2, 4)
    [link] = [link for link in together.links if link.target == box.key]
    assert link.amount == "3 × 4.0 KiB"
    assert (result.title, result.calls) == ("lengths ×3", ("lengths[0]", "lengths[1]", "lengths[2]"))


def test_a_drawing_shows_queues_and_their_stages(write: Callable[[str, str], str], program: str) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\n\n@hf.dataflow\n")
        file.write("def queued(questions: Questions, actor: Actor, judge: Judge) -> Lengths:\n")
        file.write('    return judge.weigh(hf.queue(actor.think(questions), group=2, lag=3, late="wait"))\n\n')
        file.write("\nqueued_drawn = hf.Experiment(queued, deployment, dims={B: 4, P: 256})\n")
    compiled = load("shouting.py:queued_drawn").deployed("draw").compile()
    shown = scene(compiled)
    assert [(box.title, box.stage) for box in shown.boxes if box.kind == "call"] == [
        ("actor.think", 0),
        ("judge.weigh", 1),
    ]
    assert shown.queues == ("queue from stage 0 -> 1: lag=3 wait, groups of 2",)
    assert main(["draw", "shouting.py:queued_drawn", "-o", "plan.svg"]) == 0
    texts = [text.text for text in ET.parse("plan.svg").iter(f"{SVG}text")]
    assert {"stage 0", "stage 1", *shown.queues} <= set(texts)
    assert "stage 2" not in texts, "levels of the schedule, which have other numbers than the stages of queues"
    assert all(text in mermaid(compiled) for text in ("<br/>stage 0", "<br/>stage 1", shown.queues[0]))


def test_the_suffix_picks_the_format(program: str, plan: CompiledPlan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "shouting.py:pondering", "-o", "plan.mmd"]) == 0
    assert main(["draw", "shouting.py:pondering"]) == 0
    out, _ = capsys.readouterr()
    assert out == Path("plan.mmd").read_text(encoding="utf-8") == mermaid(plan)
    assert main(["draw", "shouting.py:pondering", "-o", "plan.gif"]) == 2
    assert "must end in .svg, .png, .mmd" in capsys.readouterr().err


def test_without_matplotlib_only_png_is_refused(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["draw", "shouting.py:pondering", "-o", "plan.png"]) == 2
    assert "pip install 'hfdsl[draw]'" in capsys.readouterr().err
    assert main(["draw", "shouting.py:pondering", "-o", "plan.svg"]) == 0


def test_findings_keep_a_drawing_from_being_made(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "shouting.py:experiment", "--set", "B=3"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[HF310]")


def test_a_place_that_cannot_be_written(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "shouting.py:pondering", "-o", "no/such/folder/plan.mmd"]) == 2
    assert "cannot write" in capsys.readouterr().err
