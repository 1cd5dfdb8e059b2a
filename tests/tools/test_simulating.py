"""``hfdsl simulate``: steps with one lag or another, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hfdsl.plan.timeline import read_trace
from hfdsl.tools import output
from hfdsl.tools.cli import main

Capture = pytest.CaptureFixture[str]
QUEUED = """
import hfdsl as hf
from shouting import *

@hf.dataflow
def queued(questions: Questions, actor: Actor, judge: Judge) -> Lengths:
    return judge.score(hf.queue(actor.answer(questions), lag=2, late="drop"))

batches = lambda: (Questions(text=[f"{i}"] * 8) for i in range(9))
experiment = hf.Experiment(queued, deployment, dims={B: 8, P: 4}, batches=batches)
"""
KEEPING = """
class Kept(hf.Batch):
    keep: hf.bool_[B]

class Keeping(Judge):
    @register(Dispatch.DP_PROTO)
    def keep(self, answers: Questions) -> Kept: ...

deployment = hf.Deployment(
    actor=deployment["actor"], judge=hf.place(Keeping, pool=deployment["judge"].pool)
)

@hf.dataflow"""
SECONDS = '[seconds]\n"actor.answer" = { median = 4.0, tail = 10.0 }\n"judge.score" = 1.0\n'
CONSTANT = '[seconds]\n"actor.answer" = 3.0\n"judge.score" = 2.0\n'


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def queued(write: Callable[[str, str], str], program: str) -> str:
    write("queued.py", QUEUED)
    return "queued.py:experiment"


def test_a_dataflow_with_a_queue_is_run_and_traced(queued: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "run", queued, "--steps", "4", "--trace", "queued.json", "--format", "json")
    assert (code, err) == (output.OK, "")
    assert len(out.splitlines()) == 4
    steps = read_trace(Path("queued.json").read_text())
    for plan, node in {"queued.0": "actor.answer", "queued.1": "judge.score"}.items():
        of_stage = [step for step in steps if step.plan == plan]
        assert sorted(step.number for step in of_stage)[:4] == [0, 1, 2, 3]
        assert all({call.name for call in step.calls} == {node} for step in of_stage)


def test_a_run_counts_the_steps_of_a_queue_that_needs_several_batches(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    write("wide.py", QUEUED.replace('late="drop"', 'rows=16, late="refill"'))
    _, out, err = run_cli(capsys, "run", "wide.py:experiment", "--steps", "2")
    assert ([line[:6] for line in out.splitlines()], err) == (["step 0", "step 1"], "")
    _, out, err = run_cli(capsys, "run", "wide.py:experiment", "--steps", "9")
    assert len(out.splitlines()) == 4
    assert err == "the batches of 'wide.py:experiment' end after 4 steps\n"


def test_a_run_whose_batches_fill_no_batch_of_a_queue_says_so(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    write("few.py", QUEUED.replace('late="drop"', 'rows=16, late="refill"').replace("range(9)", "range(1)"))
    code, out, err = run_cli(capsys, "run", "few.py:experiment")
    assert (code, out) == (output.OK, "")
    assert err == "the batches of 'few.py:experiment' end before the first step: they do not fill a batch of a queue\n"


def test_the_first_steps_of_a_queue_have_no_times_of_calls(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    write("waiting.py", QUEUED.replace("drop", "wait"))
    _, out, _ = run_cli(capsys, "run", "waiting.py:experiment", "--steps", "5")
    assert ["actor.answer" in line for line in out.splitlines()] == [False] * 3 + [True] * 2
    assert "()" not in out


SENDING = """
import hfdsl as hf
from tests.plan.test_weight_senders import Engine, Trainer, pool, unjudged
from tests.check.prelude import B

engine, copying = hf.place(Engine, pool=pool("engines")), {COPYING}
trainer = hf.place(Trainer, pool=pool("trainers"), transport="cuda ipc" if copying else None)
experiment = hf.Experiment(unjudged, hf.Deployment(engine=engine, trainer=trainer), {{B: 64}})
"""


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_what_copied_weights_would_gain_is_what_they_gain(
    write: Callable[[str, str], str], program: str, capsys: Capture, late: str
) -> None:
    file = write(
        "seconds.toml", '[seconds]\n"engine.generate" = { median = 4.0, tail = 3.0 }\n"trainer.update" = 3.0\n'
    )
    lags = [part for lag in ("none", "0", "4") for part in ("--lag", lag)]

    def simulated(copying: bool, *more: str) -> str:
        target = write(f"sending_{copying}.py", SENDING.format(COPYING=copying)) + ":experiment"
        code, out, _ = run_cli(capsys, "simulate", target, "--seconds", file, "--late", late, *lags, *more)
        assert code == output.OK
        return out

    waiting, copied = (json.loads(simulated(copying, "--format", "json")) for copying in (False, True))
    assert [row["copied_seconds"] for row in waiting] == [None, None, copied[2]["seconds"]]
    assert copied[2]["seconds"] < waiting[2]["seconds"]
    assert [row["copied_seconds"] for row in copied] == [None] * 3
    text = simulated(False)
    assert ["weights", "copied", f"{copied[2]['seconds']:.4g}"] in [line.split() for line in text.splitlines()]
    assert 'weights copied: with transport="cuda ipc" in the placement of trainer' in text
    assert "copied" not in simulated(True)


def test_lags_are_side_by_side(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    file = write("seconds.toml", CONSTANT)
    code, out, _ = run_cli(
        capsys, "simulate", queued, "--seconds", file, "--steps", "10", "--lag", "none", "--lag", "1"
    )
    assert code == output.OK
    assert out.splitlines()[0] == 'queued: 10 steps, groups as runs take them, late="drop"'
    assert [line.split() for line in out.splitlines()[2:9]] == [
        ["lag", "none", "1"],
        ["seconds", "per", "step", "5", "3.2"],  # ten generations of 3 s and the last update, in ten steps
        ["times", "as", "fast", "1.00", "1.56"],
        ["staleness", "0", "10%"],
        ["staleness", "1", "90%"],
        ["dropped", "0%"],
        ["idle:", "actor", "40%", "0%"],
    ]
    _, out, _ = run_cli(capsys, "simulate", queued, "--seconds", file, "--steps", "10", "--lag", "1", "--late", "wait")
    assert out.splitlines()[0] == "queued: 10 steps, batches in order, as runs take them"
    assert [line.split() for line in out.splitlines()[5:7]] == [["staleness", "0", "10%"], ["staleness", "1", "90%"]]
    assert "dropped" not in out


@pytest.mark.parametrize(
    ("queue", "late", "code", "text"),
    [
        ('rows=6, lag=1, late="wait"', "drop", "HF745", "leaves places for 12 rows, but 13 are needed"),
        ('lag=1, late="wait"', "mask", "HF765", 'late="mask" sets response_mask or loss_mask to zero'),
    ],
)
def test_a_discipline_of_the_command_line_is_checked(
    write: Callable[[str, str], str], program: str, capsys: Capture, queue: str, late: str, code: str, text: str
) -> None:
    """It is held to what a check says of the same program with this discipline."""
    call = ("simulate", "queued.py:experiment", "--seconds", write("seconds.toml", CONSTANT), "--steps", "10")
    write("queued.py", QUEUED.replace('lag=2, late="drop"', queue))
    assert run_cli(capsys, *call, "--lag", "1", "--late", "wait")[0] == output.OK
    status, out, _ = run_cli(capsys, *call, "--lag", "1", "--late", late)
    assert status == output.FINDINGS
    assert out.startswith(f"error[{code}]: ")
    assert text in out
    assert f"check of 'queued': 1 error with --late {late} (" in out
    write("same.py", QUEUED.replace('lag=2, late="drop"', queue.replace("wait", late)))
    assert run_cli(capsys, "check", "same.py:experiment")[1].splitlines()[0] == out.splitlines()[0]


ON_ONE_DEVICE = (
    QUEUED
    + """
device = hf.ResourcePool([1], name="device")
shared = hf.Deployment(
    actor=hf.place(Actor, pool=device, colocate=False), judge=hf.place(Judge, pool=device, colocate=False)
)
experiment = hf.Experiment(queued, shared, dims={B: 8, P: 4}, batches=batches)
"""
)


def test_a_utilization_is_stated_beside_the_seconds_or_as_an_option(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    """Answers of 3 s, and scores of 2 s that keep the device busy: a step takes 4 s if answers do half of the time."""
    write("queued.py", ON_ONE_DEVICE)
    half = '[seconds]\n"actor.answer" = { median = 3.0, utilization = 0.5 }\n"judge.score" = 2.0\n'
    none = half.replace("0.5", "0.0")
    call = ("simulate", "queued.py:experiment", "--steps", "50", "--lag", "2", "--format", "json", "--seconds")
    seconds = [
        json.loads(run_cli(capsys, *call, write("seconds.toml", text), *options)[1])[0]["seconds"]
        for text, options in (
            (CONSTANT, ()),
            (half, ()),
            (CONSTANT, ("--utilization", "actor.answer=0.5")),
            (none, ("--utilization", "actor.answer=0.5")),
            (none, ()),
            (half, ("--interference", "actor.answer=0.0")),
        )
    ]
    assert seconds == [pytest.approx(each, rel=0.02) for each in (5.0, 4.0, 4.0, 4.0, 3.0, 3.6667)]
    code, out, _ = run_cli(capsys, *call[:-3], "--seconds", write("seconds.toml", half))
    assert code == output.OK
    assert out.endswith("if calls took their median times, lag 2: actor.answer + judge.score 3.5 s\n")
    code, out, err = run_cli(capsys, *call, "seconds.toml", "--engine-utilization", "actor.answer=0.5")
    assert (code, err) == (output.OK, "")


def test_groups_that_are_late_are_dropped(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    """Each of four ranks of the actor makes two groups of a step, in a time of its own."""
    call = ("simulate", queued, "--seconds", write("seconds.toml", SECONDS), "--format", "json")
    code, out, _ = run_cli(capsys, *call, "--lag", "none", "--lag", "1", "--lag", "8")
    assert code == output.OK
    none, short, long = json.loads(out)
    assert [row["late"] for row in (none, short, long)] == [[], ["drop"], ["drop"]]
    assert (none["dropped"], none["staleness"]) == ({}, {})
    assert 0 < short["dropped"]["queue"] < 1
    assert 0 < long["dropped"]["queue"] < 1
    [waiting] = json.loads(run_cli(capsys, *call, "--lag", "1", "--late", "wait")[1])
    assert (waiting["late"], waiting["dropped"]) == (["wait"], {})


def test_a_discipline_of_the_command_line_applies_to_a_queue_that_waits(
    write: Callable[[str, str], str], queued: str, capsys: Capture
) -> None:
    call = ("simulate", queued, "--seconds", write("seconds.toml", SECONDS), "--lag", "1", "--format", "json")
    [declared] = json.loads(run_cli(capsys, *call)[1])
    write("queued.py", QUEUED.replace("drop", "wait"))
    [overridden] = json.loads(run_cli(capsys, *call, "--late", "drop")[1])
    assert overridden == declared


def test_a_filter_that_keeps_half_doubles_the_groups(
    write: Callable[[str, str], str], queued: str, capsys: Capture
) -> None:
    write("queued.py", _with_queue('hf.queue(hf.filter(answers, judge.keep(answers).keep), lag=2, late="refill")'))
    file = write("seconds.toml", '[seconds]\n"actor.answer" = 3.0\n"judge.keep" = 0.0\n"judge.score" = 0.1\n')
    call = ("simulate", queued, "--seconds", file, "--lag", "2", "--format", "json")
    [every] = json.loads(run_cli(capsys, *call)[1])
    [half] = json.loads(run_cli(capsys, *call, "--keep", "0.5")[1])
    assert every["lost"] == {"queue": 0}
    assert 0.4 < half["lost"]["queue"] < 0.6
    assert 1.7 < half["seconds"] / every["seconds"] < 2.3
    code, out, _ = run_cli(capsys, *call[:-2], "--keep", "0.5")
    assert (code, "lost to filters" in out) == (output.OK, True)
    with pytest.raises(SystemExit):
        main([*call, "--keep", "1.5"])


@pytest.mark.parametrize(("late", "plans"), [("drop", {"queued.0", "queued.1"}), ("wait", {"queued"})])
def test_simulated_steps_are_traced(
    write: Callable[[str, str], str], queued: str, capsys: Capture, late: str, plans: set[str]
) -> None:
    call = ("simulate", queued, "--seconds", write("seconds.toml", CONSTANT), "--steps", "4", "--late", late)
    code, _, err = run_cli(capsys, *call, "--lag", "1", "--trace", "steps.json")
    assert (code, err) == (output.OK, "")
    steps = read_trace(Path("steps.json").read_text())
    assert {step.plan for step in steps} == plans
    calls = {(call.name, call.start, call.stop) for step in steps if step.number == 1 for call in step.calls}
    assert calls == {("actor.answer", 3.0, 6.0), ("judge.score", 6.0, 8.0)}
    assert ("groups in 'queue'" in Path("steps.json").read_text()) == (late == "drop")
    code, out, err = run_cli(capsys, *call, "--trace", "steps.json")
    assert (code, out, err) == (
        output.USAGE,
        "",
        "hfdsl simulate: --trace has the steps of one lag: name one with --lag\n",
    )
    code, out, err = run_cli(capsys, *call, "--lag", "1", "--trace", "missing/steps.json")
    assert (code, out, err) == (
        output.USAGE,
        "",
        "hfdsl simulate: cannot write 'missing/steps.json': No such file or directory\n",
    )


@pytest.mark.parametrize("traced", ["shouting.py:experiment", "queued.py:experiment"])
def test_a_trace_of_a_run_gives_the_seconds(traced: str, queued: str, capsys: Capture) -> None:
    trace = "steps.json"
    run_cli(capsys, "run", traced, "--trace", trace)
    code, out, _ = run_cli(capsys, "simulate", queued, "--seconds", trace, "--format", "json")
    assert code == output.OK
    assert [row["lag"] for row in json.loads(out)] == [None, 0, 1, 2, 4, 8]
    assert Path(trace).exists()


@pytest.mark.parametrize(
    ("target", "text", "more", "message"),
    [
        ("shouting.py:experiment", CONSTANT, (), "'shout' has no hf.queue with a lag"),
        ("queued.py:experiment", None, (), "cannot read 'x.toml': No such file"),
        ("queued.py:experiment", '[seconds]\n"judge.score" = 1\n', (), "'x.toml' has no time for 'actor.answer'"),
        (
            "queued.py:experiment",
            '[seconds]\n"judge.score" = -1\n',
            (),
            "'x.toml': \"judge.score\" takes -1 s with a ta",
        ),
        (
            "queued.py:experiment",
            '[seconds]\n"judge.score" = true\n',
            (),
            "'x.toml': \"judge.score\" is a number of sec",
        ),
        (
            "queued.py:experiment",
            '[seconds]\n"judge.score" = { tail = 2 }\n',
            (),
            "'x.toml': \"judge.score\" is a numb",
        ),
        ("queued.py:experiment", "seconds = [1]\n", (), "'x.toml' is not a trace of hfdsl, nor a TOML file with a tab"),
        ("queued.py:experiment", CONSTANT, ("--lag", "two"), "--lag takes numbers and 'none', got 'two'"),
        ("queued.py:experiment", CONSTANT, ("--lag", "-1"), "--lag takes numbers of at least 0"),
        (
            "queued.py:experiment",
            CONSTANT,
            ("--keep", "0.5"),
            "--keep is the share of groups that filters keep, and no queue of 'queued' is behind one",
        ),
        (
            "queued.py:experiment",
            CONSTANT,
            ("--utilization", "judge.score=50"),
            "--utilization takes CALL=SHARE, with a share from 0 to 1, got 'judge.score=50'",
        ),
        (
            "queued.py:experiment",
            CONSTANT,
            ("--engine-utilization", "judge.score"),
            "--engine-utilization takes CALL=SHARE, with a share from 0 to 1, got 'judge.score'",
        ),
        (
            "queued.py:experiment",
            CONSTANT,
            ("--utilization", "judge.score=0.2", "--interference", "judge.score=0.3"),
            "'judge.score': interference is at most utilization, 0.2, got 0.3",
        ),
        ("queued.py:experiment", CONSTANT, ("--utilization", "judge.scor=1"), "'queued' has no call 'judge.scor'; did"),
        (
            "queued.py:experiment",
            '[seconds]\n"judge.score" = { median = 1, utilization = 2 }\n',
            (),
            "'x.toml': \"judge.score\": utilization is a number from 0 to 1, got 2",
        ),
    ],
)
def test_what_cannot_be_simulated(
    write: Callable[[str, str], str],
    queued: str,
    capsys: Capture,
    target: str,
    text: str | None,
    more: tuple[str, ...],
    message: str,
) -> None:
    if text is not None:
        write("x.toml", text)
    code, out, err = run_cli(capsys, "simulate", target, "--seconds", "x.toml", *more)
    assert (code, out) == (output.USAGE, "")
    assert err.startswith(f"hfdsl simulate: {message}")


@pytest.mark.parametrize(
    ("queue", "lags"),
    [
        ('hf.queue(answers, rows=16, lag=2, late="wait")', "0 1 2 4 8"),
        ('hf.queue(answers, rows=4, lag=2, late="refill")', "1 2 4 8"),  # a step of 8 needs as many places
        ('hf.queue(hf.filter(answers, judge.keep(answers).keep), lag=2, late="drop")', "1 2 4 8"),
    ],
)
def test_batches_of_several_steps_are_those_of_a_run(
    write: Callable[[str, str], str], queued: str, capsys: Capture, queue: str, lags: str
) -> None:
    write("queued.py", _with_queue(queue))
    write("x.toml", CONSTANT + '"judge.keep" = 0.0\n' * ("keep" in queue))
    code, out, err = run_cli(capsys, "simulate", queued, "--seconds", "x.toml")
    assert (code, err) == (output.OK, "")
    assert out.splitlines()[2].split() == ["lag", *lags.split()]
    code, out, err = run_cli(capsys, "simulate", queued, "--seconds", "x.toml", "--lag", "none")
    assert (code, out) == (output.USAGE, "")
    assert err == (
        "hfdsl simulate: without its queues 'queued' is another program, since a batch is not what a step puts in: "
        "'--lag none' does not go with it\n"
    )


def _with_queue(queue: str) -> str:
    """The program with another queue, and a judge that can filter."""
    changed = QUEUED.replace('hf.queue(actor.answer(questions), lag=2, late="drop")', "batch")
    changed = changed.replace("    return", f"    answers = actor.answer(questions)\n    batch = {queue}\n    return")
    return changed.replace("judge: Judge", "judge: Keeping").replace("@hf.dataflow", KEEPING)


def test_a_step_of_unknown_size_has_groups_of_unknown_number(
    write: Callable[[str, str], str], queued: str, capsys: Capture
) -> None:
    write("queued.py", QUEUED.replace("dims={B: 8, P: 4}", "dims={P: 4}"))
    write("x.toml", CONSTANT)
    code, out, err = run_cli(capsys, "simulate", queued, "--seconds", "x.toml", "--lag", "2")
    assert (code, out) == (output.USAGE, "")
    assert err.startswith("hfdsl simulate: the groups of a batch depend on dims whose sizes are unknown: give")
    code, out, err = run_cli(capsys, "simulate", queued, "--seconds", "x.toml", "--lag", "2", "--set", "B=8")
    assert (code, err) == (output.OK, "")


TWO = "hf.queue(judge.polish(hf.queue(actor.answer(questions), lag=1, late='drop')), lag=1, late='drop')"


def test_each_of_several_queues_has_a_share(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    polishing = KEEPING.replace(
        "def keep(self, answers: Questions) -> Kept", "def polish(self, x: Questions) -> Questions"
    )
    changed = QUEUED.replace('hf.queue(actor.answer(questions), lag=2, late="drop")', TWO)
    write("queued.py", changed.replace("judge: Judge", "judge: Keeping").replace("@hf.dataflow", polishing))
    write("x.toml", CONSTANT + '"judge.polish" = 1.0\n')
    code, out, err = run_cli(capsys, "simulate", queued, "--seconds", "x.toml", "--lag", "1", "--steps", "20")
    assert (code, err) == (output.OK, "")
    assert out.splitlines()[0] == 'queued: 20 steps, groups as runs take them, late="drop"'
    lines = [line.split() for line in out.splitlines()]
    assert ["dropped:", "queue1", "0%"] in lines
    assert ["dropped:", "queue2", "0%"] in lines


EXAMPLE = """\
, in seconds (tail is the 99th percentile over the median), for example:

[seconds]
"actor.answer" = { median = 2.0, tail = 1.5 }
"judge.score" = 2.0
"""


def test_an_example_has_the_calls_of_the_plan(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "simulate", queued)
    assert (code, out) == (output.USAGE, "")
    assert err == f"hfdsl simulate: give --seconds FILE: a run's trace or a TOML file with the times of calls{EXAMPLE}"
    code, _, err = run_cli(capsys, "simulate", queued, "--seconds", write("x.toml", "steps = 2\n"))
    assert (code, err) == (
        output.USAGE,
        f"hfdsl simulate: 'x.toml' has no table [seconds]; write the times of calls{EXAMPLE}",
    )
    example = write("example.toml", EXAMPLE.partition("\n\n")[2])
    assert run_cli(capsys, "simulate", queued, "--seconds", example, "--steps", "2")[0] == 0


TWO_CALLS = QUEUED.replace("actor.answer(questions)", "actor.answer(actor.answer(questions))")


def test_a_name_without_a_number_stands_for_all_its_calls(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    write("queued.py", TWO_CALLS)
    numbered = '[seconds]\n"actor.answer#1" = 3.0\n"actor.answer#2" = 3.0\n"judge.score" = 2.0\n'
    partly = CONSTANT + '"actor.answer#2" = 3.0\n'
    tables = [
        run_cli(capsys, "simulate", "queued.py:experiment", "--seconds", write("seconds.toml", text), "--steps", "5")
        for text in (CONSTANT, numbered, partly)
    ]
    assert tables[0][0] == output.OK
    assert tables[0] == tables[1] == tables[2]


def test_all_mistakes_of_a_file_are_reported(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    text = '[seconds]\n"judge.scor" = 1.0\n"actor.answer" = "soon"\n"actor.anser" = 1.0\n"trainer.fit" = -1.0\n'
    code, _, err = run_cli(capsys, "simulate", queued, "--seconds", write("x.toml", text))
    assert code == output.USAGE
    lines = err.removeprefix("hfdsl simulate: ").splitlines()
    assert [line.partition(";")[0].partition(" is a")[0] for line in lines] == [
        "'x.toml': \"actor.answer\"",
        "'x.toml': \"trainer.fit\" takes -1 s with a tail of 1: at least 0 s, a tail of at least 1",
        "'queued' has no call 'judge.scor'",
        "'queued' has no call 'actor.anser'",
        "'queued' has no call 'trainer.fit'",
    ]  # and no time is missing: a misspelled name is meant for a call
    call = ("simulate", queued, "--seconds", write("x.toml", CONSTANT), "--utilization", "a.b=1")
    code, _, err = run_cli(capsys, *call, "--utilization", "c.d=1")
    assert (code, err.count("'queued' has no call")) == (output.USAGE, 2)


def test_a_name_of_no_call_is_refused(write: Callable[[str, str], str], queued: str, capsys: Capture) -> None:
    file = write("seconds.toml", CONSTANT + '"judge.scor" = 1.0\n')
    code, _, err = run_cli(capsys, "simulate", queued, "--seconds", file)
    assert code == output.USAGE
    assert "'queued' has no call 'judge.scor'; did you mean 'judge.score'?" in err


# -- hfdsl check --seconds


FAST = '[seconds]\n"actor.answer" = 9.0\n"judge.score" = 2.0\n'


def test_a_check_names_a_lag_that_makes_no_step_faster(
    write: Callable[[str, str], str], queued: str, capsys: Capture
) -> None:
    file = write("seconds.toml", FAST)
    code, out, _ = run_cli(capsys, "check", queued, "--seconds", file)
    assert code == output.OK
    assert "warning[HF759]: with lag=2 rows may be 2 updates old, and steps are as fast with lag=0" in out
    assert "2 roles, 9.01 s per step, longest actor.answer 9 s, " in out
    assert run_cli(capsys, "check", queued, "--seconds", file, "--strict")[0] == output.FINDINGS
    assert "HF759" not in run_cli(capsys, "check", queued)[1]
    code, out, _ = run_cli(capsys, "check", queued, "--seconds", file, "--fix")
    assert (code, "no findings" in out) == (output.OK, True)
    assert "lag=0" in Path("queued.py").read_text()


def test_a_check_of_several_programs_times_those_with_queues(
    write: Callable[[str, str], str], queued: str, program: str, capsys: Capture
) -> None:
    file = write("seconds.toml", FAST)
    code, out, err = run_cli(capsys, "check", "--discover", ".", "--seconds", file)
    assert (code, err, out.count("per step"), out.count("HF759")) == (output.OK, "", 1, 1)


@pytest.mark.parametrize(
    ("target", "seconds", "message"),
    [
        ("shouting.py:experiment", FAST, "--seconds times programs with queues, and '{target}' has none with a lag"),
        ("queued.py:queued", FAST, "--seconds times an hf.Experiment, and '{target}' is a dataflow without a"),
        ("queued.py:experiment", FAST.replace('"judge.score"', '"judge.scor"'), "did you mean 'judge.score'?"),
        ("queued.py:experiment", '[seconds]\n"judge.score" = 2.0\n', "has no time for 'actor.answer'"),
        ("queued.py:experiment", None, "cannot read 'seconds.toml': No such file"),
    ],
)
def test_a_check_that_can_time_nothing_says_why(
    write: Callable[[str, str], str], queued: str, capsys: Capture, target: str, seconds: str | None, message: str
) -> None:
    if seconds is not None:
        write("seconds.toml", seconds)
    code, out, err = run_cli(capsys, "check", target, "--seconds", "seconds.toml")
    assert (code, out) == (output.USAGE, "")
    assert message.format(target=target) in err


def test_a_check_times_no_groups_of_unknown_number(
    write: Callable[[str, str], str], program: str, capsys: Capture
) -> None:
    write("open.py", QUEUED.replace(", dims={B: 8, P: 4}", ""))
    code, _, err = run_cli(capsys, "check", "open.py:experiment", "--seconds", write("seconds.toml", FAST))
    assert (code, "dims whose sizes are unknown: give them with --set" in err) == (output.USAGE, True)
