# mypy: disable-error-code="empty-body"
"""Comments that hide warnings, and nothing else."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.report import Report


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...


ADVICE = "return it or remove the call"


def notes(report: Report) -> list[tuple[str, tuple[str, ...]]]:
    """What is said beside the advice for what nobody reads."""
    return [(finding.code, tuple(note for note in finding.notes if note != ADVICE)) for finding in report]


def test_a_warning_is_hidden() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Rows:
        actor.score(rows)  # hf: ignore[HF602]
        actor.score(rows)  # hf: ignore[HF305, HF602]
        actor.score(
            rows,
        )  # hf:ignore[HF602]
        return rows

    assert program.check().findings == ()


def test_a_comment_hides_only_what_it_names_and_where_it_stands() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Rows:
        # hf: ignore[HF602]
        actor.score(rows)
        actor.score(rows)  # hf: ignore[HF305]
        print("# hf: ignore[HF602]", actor.score(rows))
        return rows

    assert notes(program.check()) == [("HF602", ())] * 3


def test_a_comment_without_a_code_or_with_an_unknown_one_is_reported() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Rows:
        actor.score(rows)  # hf: ignore
        actor.score(rows)  # hf: ignore[HF206, HF062]
        return rows

    assert notes(program.check()) == [
        ("HF602", ("a comment names what it hides, as in '# hf: ignore[HF602]'",)),
        ("HF602", ("'# hf: ignore[HF062]' names no code of hfdsl",)),
    ]


def test_an_error_cannot_be_hidden() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Rows:
        return actor.score(rows)  # hf: ignore[HF310]

    deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([2])))
    report = program.check(deployment, dims={B: 3})
    assert not report.ok
    assert notes(report)[0][1][-1] == (
        "'# hf: ignore[HF310]' hides nothing: HF310 is an error, and comments hide warnings only"
    )
