"""What notebooks show: small, well-formed, and with every name of a user as text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.check.report import Report
from hfdsl.plan.compiled import MAX_DRAWN, CompiledPlan
from hfdsl.plan.timeline import Interval, Timeline
from hfdsl.testing.conformance import SuiteOutcome, SuiteReport

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;"
EMPTY = {"circle", "rect", "polyline", "polygon"}
TAGS = {"details", "div", "g", "p", "pre", "b", "summary", "svg", "table", "tbody", "td", "text", "th", "thead"}
TAGS |= {"title", "tr", *EMPTY}


class Elements(HTMLParser):
    """The elements of a page; they must be closed in order, and none may be another one than hfdsl writes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.count = 0
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs)
        self.count += 1
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY
        self.count += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    text: hf.Obj[str, B]
    hint: hf.i64[B] | None = None


Rows.__name__ = f"Rows{HOSTILE}"


class Role(hf.Worker):
    def __init__(self, prompt: str = "") -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    def work(self, rows: Rows, style: str = "") -> Rows:
        return rows


def flow_of(calls: int) -> hf.Dataflow[Any, Any]:
    def body(rows: Rows, role: Role) -> Rows:
        for _ in range(calls):
            rows = role.work(rows, style=HOSTILE)
        return rows

    body.__name__ = f"flow{HOSTILE}"
    return hf.dataflow(body)


def compiled(calls: int = 2) -> CompiledPlan:
    pool = hf.ResourcePool([2], use_gpu=False, name=f"pool{HOSTILE}")
    return flow_of(calls).compile(hf.Deployment(role=hf.place(Role, HOSTILE, pool=pool)), {B: 4})


def refused() -> Report:
    return flow_of(2).check(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2], name=HOSTILE))), {B: 3})


def timeline() -> Timeline:
    calls = (Interval(("pool", 0), "call", HOSTILE, 1.0, 2.0), Interval(("pool", 0), "call", "role.work#2", 2.0, 3.0))
    return Timeline(HOSTILE, 7, 1.0, 3.0, calls)


def rows() -> Rows:
    return Rows(x=torch.zeros(3), text=[HOSTILE] * 3, hint=None)


def suite() -> SuiteReport:
    return SuiteReport(HOSTILE, (SuiteOutcome(HOSTILE, "shared", 0.1, HOSTILE), SuiteOutcome("b", "shared", 0.1)))


SHOWN: dict[str, Any] = {
    "report": refused,
    "plan": compiled,
    "graph": lambda: flow_of(2).trace(),
    "batch": rows,
    "timeline": timeline,
    "empty timeline": lambda: Timeline("flow", -1, 0.0, 0.0, ()),
    "suite": suite,
    "large plan": lambda: compiled(MAX_DRAWN + 1),
    "large graph": lambda: flow_of(400).trace(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_html_is_well_formed_and_names_are_text(name: str) -> None:
    shown = SHOWN[name]()
    elements = Elements(shown._repr_html_())
    assert 0 < elements.count < 1000
    if name in ("report", "graph", "batch", "timeline", "suite"):
        assert "<script>" in elements.text  # as text: an element would have failed above


@pytest.mark.parametrize("name", SHOWN)
def test_repr_is_a_line(name: str) -> None:
    text = repr(SHOWN[name]())
    assert len(text.replace(HOSTILE, "")) < 120
    assert "\n" not in text


def test_a_plan_is_a_picture_with_its_text() -> None:
    plan = compiled()
    page = plan._repr_html_()
    assert page.count("<svg") == 1
    assert "bytes between processes" not in page
    assert "read in place" in page  # the last line of the plan in print
    assert "<svg" not in compiled(MAX_DRAWN + 1)._repr_html_()


def test_bars_are_where_the_calls_are() -> None:
    page = timeline()._repr_html_()
    assert "left:0.00%;width:50.00%" in page
    assert "left:50.00%;width:50.00%" in page
    assert "step 7 of" in page


def test_a_large_graph_says_what_it_leaves_out() -> None:
    assert "... and 201 more" in flow_of(400).trace()._repr_html_()
    assert len(str(flow_of(400).trace()).splitlines()) == 402


def test_a_report_names_its_codes_in_a_line() -> None:
    assert repr(refused()).endswith(": 1 error: HF310>")
