"""A step that lost processes continues: calls that ended elsewhere do not run again, and all values are the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfWarning
from hfdsl.plan.optimize import Optimize
from hfdsl.runtime.recovery.ended_calls import ended_calls
from tests.nightly import examples
from tests.plan.oracle import B, Place, Program, R, programs
from tests.plan.test_run import agrees
from tests.runtime.dying_programs import FOLDER
from tests.runtime.loaded_programs import Actor, Engine, Rows
from tests.runtime.losing_backend import LateLossBackend, Losses

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


# The second loss comes before the call of `role0` that ended before the first one.
LOST_TWICE = Program(
    places=(
        Place(mesh=hf.Mesh(dp=2, tp=2), pool=hf.ResourcePool([4], name="pool0"), colocate=False),
        Place(mesh=hf.Mesh(pp=2, dp=2), pool=hf.ResourcePool([4], name="pool1"), colocate=False),
    ),
    rows=6,
    everything=False,
    steps=[("repeat", 0, 2), ("everywhere", 1, 0, 0), ("sieve", 2, 1, 1, None), ("even_padded", 0, 2), ("zero", 0, 3)],
)

# The driver collects the result of a call that has ended, and a call that has not reads it.
COLLECTED_BEFORE = Program(
    places=(
        Place(mesh=hf.Mesh(pp=2, dp=2), pool=hf.ResourcePool([4], name="pool0"), colocate=False),
        Place(mesh=hf.Mesh(dp=2), pool=hf.ResourcePool([2], name="pool1"), colocate=False),
    ),
    rows=12,
    everything=False,
    steps=[
        *[("micro", 0, 0), ("micro", 0, 1), ("part", 0, 2, 0), ("micro", 0, 3), ("plus", 3, 0), ("custom", 1, 5)],
        *[("micro", 0, 6), ("micro", 0, 7)],
    ],
)


@many
@example(COLLECTED_BEFORE, {0: 0}, Optimize())
@example(LOST_TWICE, {3: 1, 6: 1}, Optimize())
@given(
    programs(),
    st.dictionaries(st.integers(0, 9), st.integers(0, 5), min_size=1, max_size=3),
    st.sampled_from([Optimize(), Optimize(overlap=False), Optimize(fusion=False)]),
)
def test_a_loss_changes_no_value_and_repeats_no_call_that_has_ended(
    program: Program, losses: dict[int, int], optimize: Optimize
) -> None:
    launched: list[LateLossBackend] = []

    def lowering(plan: Any, *, seed: int, **_: Any) -> LateLossBackend:
        launched.append(LateLossBackend(plan, seed, Losses(losses)))
        return launched[0]

    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HfWarning)
        with plan.launch(lowering, retries=hf.Retries(every=None)) as running:
            for seed in range(2):
                agrees(program, running, program.rows, seed)
            assert all(recovered.repeated_steps == 0 for recovered in running.recoveries)
    (backend,) = launched
    event(f"{len(running.recoveries)} losses")
    group_of = {step.node: step.group for step in plan.steps}
    again = {group_of[segment] for (_, segment), count in backend.runs.items() if count > 1}
    assert again <= {*backend.lost_groups, *(group for groups in backend.forgotten for group in groups)}


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def judge(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor * 3)


@hf.dataflow
def sync_first(rows: Rows, actor: Actor, engine: Engine, judge: Judge) -> Rows:
    hf.sync(actor, engine)
    return actor.update(judge.judge(engine.sample(rows)))


@hf.dataflow
def sync_between(rows: Rows, actor: Actor, engine: Engine, judge: Judge) -> Rows:
    before = engine.sample(rows)
    hf.sync(actor, engine)
    return actor.update(judge.judge(engine.sample(before)))


@pytest.mark.parametrize(("flow", "repeated"), [(sync_first, 0), (sync_between, 1)])
def test_a_load_changes_no_state_where_a_repeated_step_begins_with_it(
    flow: Any, repeated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    pools = [hf.ResourcePool([1], use_gpu=False) for _ in range(3)]
    roles = {"actor": Actor, "engine": Engine, "judge": Judge}
    placed = {name: hf.place(role, pool=pool) for (name, role), pool in zip(roles.items(), pools, strict=True)}
    plan = flow.compile(hf.Deployment(**placed))
    launched: list[LateLossBackend] = []

    def losing(at: dict[int, int]) -> Any:
        def lowering(plan: Any, *, seed: int, **_: Any) -> LateLossBackend:
            launched.append(LateLossBackend(plan, seed, Losses(at)))
            return launched[-1]

        return lowering

    def results(at: dict[int, int]) -> tuple[list[list[float]], list[int]]:
        with plan.launch(losing(at), retries=hf.Retries(every=None)) as running:
            values = [
                running.step(Rows(x=torch.arange(2, dtype=torch.float64) + step)).x.tensor.tolist() for step in range(3)
            ]
            return values, [recovered.repeated_steps for recovered in running.recoveries]

    expected, _ = results({})
    per_step = launched[0].submissions // 3
    judge = sorted(roles).index("judge")
    with pytest.warns(HfWarning, match="HF840"):
        assert results({per_step + 1: judge}) == (expected, [repeated])
    again = {number for (step, number), count in launched[1].runs.items() if step == 1 and count > 1}
    assert bool(again) == bool(repeated)


def segment(number: int, group: str, *, custom: bool = False) -> Any:
    step = SimpleNamespace(signature=SimpleNamespace(body=lambda: None))
    return SimpleNamespace(number=number, group=group, steps=(step,), ranks=(0, 1), custom=custom)


def routes(*segments: Any, receives: dict[int, Any], result: tuple[Any, ...] = ()) -> Any:
    received: dict[int, Any] = {part.number: {} for part in segments} | receives
    nothing: dict[str, Any] = {"query_payloads": {}, "pending_payloads": frozenset()}
    return SimpleNamespace(segments=segments, receives=received, result=result, **nothing)


def ended(*calls: str) -> Any:
    return lambda acknowledgments: [call in calls for call in acknowledgments]


def replies(*numbers: int, exports: int = -1) -> dict[int, Any]:
    return {
        number: [(f"{number} {rank}", [None if number == exports else f"payload {number} {rank}"]) for rank in (0, 1)]
        for number in numbers
    }


CALLS = segment(1, "actor"), segment(2, "judge"), segment(3, "actor")


@pytest.mark.parametrize(
    ("done", "reused", "left"),
    [
        (("1 0", "1 1"), {1}, {"actor"}),
        (("1 0", "1 1", "3 0", "3 1"), {1, 3}, {"actor"}),
        (("1 0",), set(), set()),  # what its rank 1 is to do may need its rank 0
        (("3 0", "3 1"), set(), set()),  # it may have dropped what call 1 reads
    ],
)
def test_the_first_calls_of_a_group_are_used_again(done: tuple[str, ...], reused: set[int], left: set[str]) -> None:
    calls, groups = ended_calls(routes(*CALLS, receives={}), replies(1, 2, 3), {"actor"}, ended(*done))
    assert (set(calls), groups) == (reused, left)


@pytest.mark.parametrize(
    ("receives", "result", "reused"),
    [
        ({4: {0: ((1, 0, 0),)}}, (), {1}),  # its reader has ended, and is not lost
        ({2: {0: ((1, 0, 0),)}}, (), set()),
        ({}, ((1, 0, 0),), set()),
    ],
)
def test_exported_weights_that_are_still_to_be_read_are_exported_again(
    receives: Any, result: tuple[Any, ...], reused: set[int]
) -> None:
    parts = (segment(1, "actor"), segment(4, "critic"), segment(2, "judge"))
    done = ended("1 0", "1 1", "4 0", "4 1")
    calls, groups = ended_calls(
        routes(*parts, receives=receives, result=result), replies(1, 4, exports=1), {"actor", "critic"}, done
    )
    assert set(calls) == reused | {4}
    assert groups == {"critic"} | ({"actor"} if reused else set())
