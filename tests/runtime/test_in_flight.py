"""Weights in flight, against a model in plain Python that makes one token after another from a list of weights."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from weakref import ref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.deploy.deployment import TransportName
from hfdsl.errors import CheckpointError, DefinitionError, HfError, ResourceError, RoleError, WiringError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.throughput import throughput
from hfdsl.plan.timeline import read_trace
from hfdsl.protocols.call import Call
from hfdsl.protocols.queueing import DISCIPLINES, Late
from hfdsl.runtime.decisions import from_lines
from hfdsl.runtime.queues.durations import CallSeconds, DrawnSeconds
from hfdsl.runtime.queues.plan_simulation import simulate_plan
from hfdsl.runtime.queues.virtual_clock import VirtualCall
from hfdsl.runtime.rank.in_flight import ArrivedWeights
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.runtime.transports import direct
from hfdsl.testing import check_decisions
from hfdsl.tools.plan_json import plan_as_dict
from tests.nightly import examples
from tests.runtime.in_flight_programs import (
    TOKENS,
    Actor,
    B,
    DyingActor,
    Engine,
    Judge,
    Prompts,
    R,
    Samples,
    Scorer,
    TensorActor,
    TensorEngine,
    balanced_in_flight,
    between_calls,
    flight_deployment,
    in_flight,
    next_token,
    prompts,
    scored_in_flight,
    tensors_between_calls,
    tensors_in_flight,
)
from tests.runtime.stage_programs import GivenSeconds

SIZE, SEED = 4, 3


def noise_of(step: int, row: int, tokens: int, dataflow: str = "in_flight") -> list[float]:
    """What the engine draws for a row of a step."""
    call = Call(seed=SEED, step=step, node=0, rank=0, first_row=row, row_count=1, dataflow=dataflow)
    noise: list[float] = call.uniforms(tokens).double()[0].tolist()
    return noise


@dataclass(frozen=True)
class Case:
    """How long calls take: of generation by step and rank, of updates by step."""

    lag: int
    steps: int
    generation: tuple[tuple[int, int], ...]
    updates: tuple[int, ...]

    @property
    def seconds(self) -> dict[str, GivenSeconds]:
        return {
            "engine.generate": GivenSeconds(self.generation),
            "actor.update": GivenSeconds([(seconds,) for seconds in self.updates]),
        }


def cases() -> st.SearchStrategy[Case]:
    seconds = st.integers(1, 9)
    return st.builds(
        Case,
        lag=st.integers(1, 3),
        steps=st.integers(1, 7),
        generation=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4).map(tuple),
        updates=st.lists(seconds, min_size=1, max_size=3).map(tuple),
    )


def launched(flow: Any, late: Late, lag: int, rows: int | None = None, retries: hf.Retries | None = None) -> Any:
    plan = flow.given(lag=lag, late=late, rows=rows).compile(flight_deployment(), dims={B: SIZE, R: TOKENS})
    return plan.launch("local", seed=SEED, retries=retries)


Trained = tuple[list[list[float]], list[list[int]]]
"""The tokens of a batch, and the versions under which they were made."""


def modeled(case: Case) -> list[Trained]:
    """What is trained, where batches are taken in the order of dispatch."""
    free, weights = [0, 0], [1.0]
    ends, versions_taken, updated = list[int](), list[int](), list[int]()
    spans = list[list[tuple[int, int]]]()

    def dispatch(step: int) -> None:
        version = max(0, step - case.lag)
        begin = max(versions_taken[version - 1], updated[version - 1]) if version else 0
        durations = case.generation[step % len(case.generation)]
        spans.append([])
        for rank in (0, 1):
            start = max(begin, free[rank])
            free[rank] = start + durations[rank]
            spans[step].append((start, durations[rank]))
        ends.append(max(free))

    trained = list[Trained]()
    for step in range(case.steps):
        while len(spans) <= min(step + case.lag, case.steps - 1):
            dispatch(len(spans))
        tokens, versions = list[list[float]](), list[list[int]]()
        for row in range(SIZE):
            start, duration = spans[step][row // 2]
            draw = noise_of(step, row, TOKENS)
            before, made, under = float(SIZE * step + row), list[float](), list[int]()
            for t in range(TOKENS):
                under.append(sum((end - start) * TOKENS <= t * duration for end in updated))
                made.append(before := next_token(before, weights[under[t]], draw[t]))
            tokens.append(made)
            versions.append(under)
        trained.append((tokens, versions))
        versions_taken.append(max([ends[step], *updated[-1:]]))
        updated.append(versions_taken[step] + case.updates[step % len(case.updates)])
        weights.append(0.9 * weights[step] + 0.1 * float(torch.tensor(tokens, dtype=torch.float64).mean()))
    return trained


def bits(results: Sequence[Any]) -> list[Trained]:
    return [(result.tokens.tensor.tolist(), result.versions.tensor.tolist()) for result in results]


@settings(max_examples=examples(25), deadline=None)
@given(cases())
@example(Case(2, 6, ((6, 3), (4, 7), (5, 5)), (2, 3)))
def test_every_token_is_made_by_the_weights_that_had_arrived(case: Case) -> None:
    with launched(in_flight, "wait", case.lag) as running:
        assert bits(list(running.stream(prompts(case.steps, SIZE), seconds=case.seconds))) == modeled(case)


@pytest.mark.parametrize("flow", [in_flight, between_calls])
def test_calls_of_steps_that_are_over_are_forgotten(flow: Any) -> None:
    """A long run needs no more memory than a short one."""
    case, kept = Case(2, 40, ((6, 3), (4, 7), (5, 5)), (2, 3)), list[int]()
    with launched(flow, "drop", case.lag) as running:
        for number, _ in enumerate(running.stream(prompts(case.steps, SIZE), seconds=case.seconds)):
            if number in (15, 35):
                kept.append(sum(isinstance(each, VirtualCall) for each in gc.get_objects()))
    assert kept[1] <= kept[0] + 8, "the number in progress varies"


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_calls_that_would_be_balanced_take_rows_in_order(late: Late, tmp_path: Path) -> None:
    """No rank of them waits for the row weights of other ranks: these are in flight, too."""
    pool = hf.ResourcePool([2], use_gpu=False, name="judge")
    places = hf.Deployment(**{**flight_deployment().placements, "judge": hf.place(Judge, pool=pool)})
    plan = balanced_in_flight.given(late=late).compile(places, dims={B: SIZE, R: TOKENS})
    log, again = tmp_path / "log", tmp_path / "again"
    with plan.launch("local", seed=SEED) as running:
        results = list(running.stream(prompts(4, SIZE), log=log))
    firsts = [result.versions.tensor[:, 0].tolist() for result in results]
    half = SIZE // 2
    assert firsts == [[SIZE * step] * half + [SIZE * step + half] * half for step in range(4)]
    with plan.launch("local", seed=SEED) as running:
        assert bits(list(running.stream(prompts(4, SIZE), replay=log, log=again))) == bits(results)


def test_a_call_takes_weights_in_its_middle() -> None:
    """Else the property above would say nothing."""
    versions = [row for _, rows in modeled(Case(2, 6, ((6, 3), (4, 7), (5, 5)), (2, 3))) for row in rows]
    assert [0, 0, 0, 1, 1, 1] in versions
    assert [1, 1, 1, 1, 2, 2] in versions


@settings(max_examples=examples(12), deadline=None)
@given(cases(), st.sampled_from(DISCIPLINES[:3]), st.sampled_from([None, 3, 6]))
@example(Case(1, 7, ((1, 9), (2, 2)), (3,)), "drop", 3)
def test_no_token_is_older_than_the_lag_and_the_log_repeats_the_run(case: Case, late: Late, rows: int | None) -> None:
    with TemporaryDirectory() as folder:
        log, again = Path(folder, "log"), Path(folder, "again")
        with launched(in_flight, late, case.lag, rows) as running:
            results = list(running.stream(prompts(case.steps, SIZE), log=log, seconds=case.seconds))
        decisions = from_lines(log.read_text())
        with launched(in_flight, late, case.lag, rows) as running:
            assert bits(list(running.stream(prompts(case.steps, SIZE), replay=log, log=again))) == bits(results)
        assert again.read_text() == log.read_text()
    check_decisions(QueueSpec("queue", case.lag, late, rows or SIZE, SIZE), decisions)
    for result in results:
        for versions, update, dispatched in zip(
            result.versions.tensor.tolist(),
            result.update.tensor.tolist(),
            result.from_version.tensor.tolist(),
            strict=True,
        ):
            assert dispatched <= versions[0], "the oldest token is no older than the dispatch"
            assert update - versions[0] <= case.lag
            assert all(before <= after for before, after in pairwise(versions))
            assert versions[-1] <= update


@pytest.mark.parametrize(("utilization", "later"), [(0.0, False), (1.0, True)])
def test_on_one_device_that_is_always_busy_weights_arrive_later(utilization: float, later: bool) -> None:
    """The engine and the actor in processes of their own, on one device or on two."""

    def versions(devices: int) -> list[int]:
        pools = [hf.ResourcePool([1], use_gpu=False, name=f"pool{i}") for i in range(devices)]
        places = hf.Deployment(
            engine=hf.place(Engine, TOKENS, 0.0, 1, False, pool=pools[0], colocate=False),
            actor=hf.place(Actor, 0.0, pool=pools[-1], colocate=False),
        )
        plan = in_flight.given(lag=2, late="wait").compile(places, dims={B: SIZE, R: TOKENS})
        seconds = {
            "engine.generate": DrawnSeconds(6.0, utilization=utilization),
            "actor.update": DrawnSeconds(4.0, utilization=utilization),
        }
        with plan.launch("local", seed=SEED) as running:
            results = list(running.stream(prompts(6, SIZE), seconds=seconds))
        return [version for result in results for version in result.versions.tensor.flatten().tolist()]

    shared, apart = versions(1), versions(2)
    assert sum(shared) < sum(apart) if later else shared == apart


def test_the_log_has_the_call_the_token_and_the_version(tmp_path: Path) -> None:
    case = Case(2, 3, ((6, 3), (4, 7), (5, 5)), (2, 3))
    with launched(in_flight, "wait", 2) as running:
        list(running.stream(prompts(3, SIZE), log=tmp_path / "log", seconds=case.seconds))
    loads = {each.call: each.loaded for each in from_lines((tmp_path / "log").read_text()) if each.call}
    assert loads == {
        (dispatch, 1, rank): tuple((t, version) for t, version in enumerate(row) if not t or version != row[t - 1])
        for dispatch, (_, rows) in enumerate(modeled(case))
        for rank, row in enumerate(rows[::2])
    }


def test_calls_that_take_no_time_take_no_weights() -> None:
    results = list[Any]()
    for flow in (in_flight, between_calls):
        with launched(flow, "drop", 2, rows=6) as running:
            results.append([result.versions.tensor.tolist() for result in running.stream(prompts(6, SIZE))])
    assert results[0] == results[1]


def test_a_log_of_other_loads_is_refused(tmp_path: Path) -> None:
    case, log = Case(2, 6, ((6, 3), (4, 7), (5, 5)), (2, 3)), tmp_path / "log"
    with launched(in_flight, "wait", 2) as running:
        list(running.stream(prompts(6, SIZE), log=log, seconds=case.seconds))
    text = log.read_text()
    assert '"loaded": [[0, 2], [2, 3]]' in text
    log.write_text(text.replace('"loaded": [[0, 2], [2, 3]]', '"loaded": [[0, 0], [2, 3]]'))
    with launched(in_flight, "wait", 2) as running, pytest.raises(CheckpointError, match="HF761"):
        list(running.stream(prompts(6, SIZE), replay=log))


def test_a_log_of_calls_that_overlapped_is_refused(tmp_path: Path) -> None:
    case, log = Case(2, 3, ((6, 3), (4, 7), (5, 5)), (2, 3)), tmp_path / "log"
    with launched(in_flight, "wait", 2) as running:
        list(running.stream(prompts(3, SIZE), log=log, seconds=case.seconds))
    text = log.read_text()
    loaded = '"call": [0, 1, 1], "loaded": [[0, 0]'
    assert loaded in text
    log.write_text(text.replace(loaded, f"{loaded}, [2, 1]"))
    message = "HF761: the log has calls that were in progress at once: on rank 1, that of dispatch 1 began with"
    with launched(in_flight, "wait", 2) as running, pytest.raises(CheckpointError, match=message):
        list(running.stream(prompts(3, SIZE), replay=log))


def test_a_run_goes_on_from_a_checkpoint_and_loses_no_prompt(tmp_path: Path) -> None:
    case, ends = Case(2, 8, ((6, 3), (4, 7), (5, 5)), (2, 3)), list[list[Trained]]()
    with launched(in_flight, "wait", 2) as running:
        stream = running.stream(prompts(8, SIZE), seconds=case.seconds)
        first = [next(stream) for _ in range(3)]
        running.save(tmp_path)
        saved = list(stream)
    with launched(in_flight, "wait", 2) as running:
        running.load(tmp_path)
        resumed = list(running.stream(prompts(8, SIZE, first=6), seconds=case.seconds))
    trained = [number for result in (*first, *resumed) for number in result.number.tensor.tolist()]
    assert trained == list(range(8 * SIZE))
    ends = [bits(each) for each in (saved, resumed)]
    assert [tokens for tokens, _ in ends[0][:2]] == [tokens for tokens, _ in ends[1][:2]], (
        "were there when it was saved"
    )


@given(st.integers(1, 6), cases())
@settings(max_examples=examples(15), deadline=None)
def test_the_log_of_a_run_that_goes_on_from_a_checkpoint_has_every_load_once(saved: int, case: Case) -> None:
    """It repeats both parts as one run, bit for bit."""
    with TemporaryDirectory() as folder:
        log, lag, steps = Path(folder) / "log", case.lag, saved + case.lag + 4
        with launched(in_flight, "wait", lag) as running:
            stream = running.stream(prompts(steps, SIZE), log=log, seconds=case.seconds)
            trained = [next(stream) for _ in range(saved)]
            assert running.decisions == len(log.read_text().splitlines())
            running.save(Path(folder) / "state")
        with launched(in_flight, "wait", lag) as running:
            running.load(Path(folder) / "state")
            assert running.decisions == len(log.read_text().splitlines())
            rest = prompts(steps, SIZE, first=running.batches_read)
            trained += running.stream(rest, log=log, seconds=case.seconds)
            assert running.decisions == len(log.read_text().splitlines())
        calls = [each.call for each in from_lines(log.read_text()) if each.call]
        assert sorted(calls) == [(dispatch, 1, rank) for dispatch in range(steps) for rank in (0, 1)]
        with launched(in_flight, "wait", lag) as running:
            assert bits(list(running.stream(prompts(steps, SIZE), replay=log))) == bits(trained)


@hf.dataflow
def newest(engine: Engine, actor: Actor) -> None:
    """Another program on the same workers, which sends the newest weights."""
    hf.sync(actor, engine)


@pytest.mark.parametrize("seconds", [Case(2, 6, ((6, 3), (4, 7), (5, 5)), (2, 3)).seconds, None])
def test_calls_before_those_of_another_plan_do_not_have_its_weights(seconds: Any) -> None:
    """As on Ray, where the other plan's calls wait for them; without times it changes nothing that is trained."""
    results = dict[bool, list[Any]]()
    for evaluates in (False, True):
        plan = in_flight.given(lag=2, late="wait").compile(flight_deployment(), dims={B: SIZE, R: TOKENS})
        with plan.launch("local", seed=SEED) as running, running.also(newest.compile(plan.deployment)) as other:
            results[evaluates] = []
            for result in running.stream(prompts(6, SIZE), seconds=seconds):
                results[evaluates].append(result)
                if evaluates and running.steps % 2 == 0:
                    other.step()
        assert [result.tokens.tensor.tolist() for result in results[evaluates]] == remade(results[evaluates], SIZE)
    if seconds is None:
        assert bits(results[True]) == bits(results[False])


class Failing(Engine):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        if hf.current_call().step == 2:
            raise OSError("no memory")
        return super().generate(prompts)


def test_a_call_that_fails_as_a_checkpoint_waits_for_it_breaks_the_run(tmp_path: Path) -> None:
    places = flight_deployment()
    failing = hf.Deployment(engine=hf.place(Failing, pool=places["engine"].pool), actor=places["actor"])
    with in_flight.compile(failing, dims={B: SIZE, R: TOKENS}).launch("local", seed=SEED) as running:
        next(running.stream(prompts(6, SIZE)))
        with pytest.raises(RoleError, match=r"'engine.generate' raised on rank 0 in step 2: OSError: no memory"):
            running.save(tmp_path)
        with pytest.raises(HfError, match="HF808"):
            running.save(tmp_path)


@pytest.mark.parametrize("late", ["wait", "drop"])
def test_a_call_that_waits_for_later_weights_of_a_log_is_not_saved(late: Late, tmp_path: Path) -> None:
    """It would wait for an update, which comes after the save."""
    log, seconds = tmp_path / "log", {"engine.generate": 6, "actor.update": 2}
    with launched(in_flight, late, 3) as running:
        results = list(running.stream(prompts(6, SIZE), log=log, seconds=seconds))
    with launched(in_flight, late, 3) as running:
        repeated, loader = list[Any](), iter(prompts(6, SIZE))
        repeated.append(next(running.stream(loader, replay=log)))
        text = r"HF908: .engine.generate. of dispatch 2 takes version 2 of .* in the log, and version 1 is the newest"
        with pytest.raises(CheckpointError, match=text):
            running.save(tmp_path / "saved")
        repeated += running.stream(loader, replay=log)
        assert bits(repeated) == bits(results)
        running.save(tmp_path / "saved")


@pytest.mark.parametrize("seconds", [{"engine.generate": 6, "actor.update": 2}, None])
def test_weights_between_calls_are_those_of_the_dispatch_beside_weights_in_flight(seconds: Any, tmp_path: Path) -> None:
    """As on Ray, where the scorer loads new weights after the calls that were dispatched before."""
    places, log = flight_deployment(), tmp_path / "log"
    scorer = hf.place(Scorer, pool=hf.ResourcePool([1], use_gpu=False))
    deployment = hf.Deployment(engine=places["engine"], scorer=scorer, actor=places["actor"])
    plan = scored_in_flight.compile(deployment, dims={B: SIZE, R: TOKENS})
    with plan.launch("local", seed=SEED) as running:
        results = list(running.stream(prompts(6, SIZE), log=log, seconds=seconds))
    for update, result in enumerate(results):
        assert {*result.from_version.tensor.tolist()} == {max(0, update - 2)}
        assert {*result.versions.tensor.flatten().tolist()} == {max(0, update - 2)}
    with plan.launch("local", seed=SEED) as running:
        assert bits(list(running.stream(prompts(6, SIZE), replay=log))) == bits(results)
    text, loaded = log.read_text(), '"call": [3, 1, 0], "loaded": [[0, 1]'
    assert loaded in text
    log.write_text(text.replace(loaded, f"{loaded}, [3, 2]"))
    message = r"HF761: the log has weights that arrived during 'engine.generate', .* only Ray can repeat it"
    with plan.launch("local", seed=SEED) as running, pytest.raises(CheckpointError, match=message):
        list(running.stream(prompts(6, SIZE), replay=log))


def test_eagerly_a_sync_is_between_calls() -> None:
    engine, actor = Engine(), Actor()
    trained = [in_flight(batch, engine=engine, actor=actor) for batch in prompts(3, SIZE)]
    assert [{*result.versions.tensor.flatten().tolist()} for result in trained] == [{0}, {1}, {2}]


def test_a_role_that_takes_none_between_tokens_is_refused() -> None:
    with pytest.raises(WiringError, match="HF753: sync: Engine cannot take weights in flight: its 'load' may run"):
        hf.sync(Actor(), Engine(), during="score")
    with pytest.raises(DefinitionError, match=r"HF120: .*during= is a method"):
        hf.loads("policy", during="to generate")


def test_weights_that_arrive_at_times_of_their_own_are_not_verified() -> None:
    with launched(in_flight, "wait", 2) as running:
        list(running.stream(prompts(2, SIZE)))
        with pytest.raises(HfError, match=r"HF772: no hf\.sync of 'in_flight' sends the state 'policy' between calls"):
            running.verify("policy")


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("seconds", [(41.0, 18.0, 1.0), (5.0, 18.0, 1.0), (10.0, 9.0, 4.0)])
def test_the_slowest_cycle_is_the_pace_of_the_simulation(
    lag: int, seconds: tuple[float, float, float], at_once: int
) -> None:
    """Where so many calls at once are as fast as one; calls that slow each other down take at least that long."""
    plan = in_flight.given(lag=lag).compile(flight_deployment(at_once=at_once), dims={B: SIZE, R: TOKENS})
    calls: dict[str, float] = {}
    calls["engine.generate"], calls["actor.update"], calls["engine.load"] = seconds
    for share in (1 / at_once, 1.0):
        takes = {name: DrawnSeconds(each, engine_utilization=share) for name, each in calls.items()}
        predicted = throughput(plan, calls, engine_utilization={"engine.generate": share})
        if share * at_once == 1:
            assert pace_of(plan, takes) == pytest.approx(predicted.seconds)
        assert simulate_plan(plan, takes, 40).seconds >= predicted.seconds - 1e-9
        assert (predicted.enough_lag is None) == (share * at_once > 1)


@pytest.mark.parametrize(
    ("seconds", "share", "apart", "on_one_device"),
    [
        (30.0, 1.0, (30, None), (30 + 4, None)),
        (30.0, 0.5, (15, None), (15 + 4, None)),
        (30.0, 0.0, (10, 3), (10 + 4, None)),  # three at once keep the device as busy as one
        (0.0, 1.0, (4, 0), (4, 0)),
    ],
)
def test_an_engine_and_its_device_need_a_part_of_the_seconds_of_each_call(
    seconds: float, share: float, apart: tuple[float, int | None], on_one_device: tuple[float, int | None]
) -> None:
    """The seconds per step, and the lag that is enough, if nothing is slowed down; updates take 4 s."""
    pool = hf.ResourcePool([1], use_gpu=False, name="device")
    shared = hf.Deployment(
        engine=hf.place(Engine, TOKENS, 0.0, 3, False, pool=pool, colocate=False),
        actor=hf.place(Actor, 0.0, pool=pool, colocate=False),
    )
    takes = {
        "engine.generate": DrawnSeconds(seconds, engine_utilization=share),
        "actor.update": DrawnSeconds(4.0),
    }
    for places, expected in ((flight_deployment(at_once=3), apart), (shared, on_one_device)):
        plan = in_flight.given(lag=3).compile(places, dims={B: SIZE, R: TOKENS})
        medians = {name: each.median for name, each in takes.items()}
        predicted = throughput(plan, medians, engine_utilization={"engine.generate": share})
        assert (predicted.seconds, predicted.enough_lag) == expected
        assert simulate_plan(plan, takes, 40).seconds >= predicted.seconds


def pace_of(plan: CompiledPlan, takes: Mapping[str, CallSeconds]) -> float:
    """Seconds per step, long after the start and before the end, over a multiple of the tokens of every cycle."""
    results = simulate_plan(plan, takes, 90).results
    return (results[72] - results[24]) / 48


def test_a_plan_says_how_many_calls_may_be_in_progress() -> None:
    plan = in_flight.given(lag=2).compile(flight_deployment(at_once=3), dims={B: SIZE, R: TOKENS})
    assert str(plan).count("DP_PROTO, up to 3 at once, 2 chunks") == 1
    steps = {step["label"]: step.get("at_once") for step in plan_as_dict(plan)["steps"]}
    assert steps["engine.generate"] == 3
    assert steps["actor.update"] is None


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 34 / 3), (1 / 3, 34 / 3), (0.5, 15.0), (1.0, 30.0)])
def test_calls_at_once_hide_a_long_one_if_the_engine_has_room(share: float, seconds: float) -> None:
    """Generation takes 30 s, an update 4 s: with three dispatches and calls at once, 34 s for three.

    If a call alone occupies half of the engine, three at once take 45 s, which hides the update; if it occupies all
    of it, they take 90 s.
    """
    takes = {"engine.generate": DrawnSeconds(30.0, engine_utilization=share), "actor.update": DrawnSeconds(4.0)}
    paces = list[float]()
    for at_once in (1, 3):
        plan = in_flight.given(lag=2).compile(flight_deployment(at_once=at_once), dims={B: SIZE, R: TOKENS})
        paces.append(pace_of(plan, takes))
        assert simulate_plan(plan, takes, 40).idle["engine"] < 0.2
    assert paces == pytest.approx([30.0, seconds])


def test_an_engine_that_shares_its_device_is_slowed_down_once_for_all_calls() -> None:
    """Up to three calls that share an engine use half of the device, as one does: 10 s of them, beside updates of 6 s.

    Updates take 1 + 0.5 * 0.5 times as long if they use half of it, too, and 1 + 0.5 if they use all; meanwhile the
    engine does 6 s of its 10.
    """
    pool = hf.ResourcePool([1], use_gpu=False, name="device")
    places = hf.Deployment(
        engine=hf.place(Engine, TOKENS, 0.0, 3, False, pool=pool, colocate=False),
        actor=hf.place(Actor, 0.0, pool=pool, colocate=False),
    )
    plan = in_flight.given(lag=2).compile(places, dims={B: SIZE, R: TOKENS})
    for utilization, seconds in ((0.5, 11.5), (1.0, 13.0)):
        takes = {
            "engine.generate": DrawnSeconds(10.0, utilization=0.5),
            "actor.update": DrawnSeconds(6.0, utilization=utilization),
        }
        assert pace_of(plan, takes) == pytest.approx(seconds)


def test_what_would_repeat_calls_is_refused_before_anything_starts() -> None:
    plan = in_flight.compile(flight_deployment(), dims={B: SIZE, R: TOKENS})
    with pytest.raises(HfError, match="HF765: 'in_flight' sends weights in flight"):
        plan.launch("ray", retries=hf.Retries())


def remade(results: Sequence[Any], size: int, dataflow: str = "in_flight") -> list[list[list[float]]]:
    """The tokens of results, one after another by the weights of the version that each has."""
    weights, batches = [1.0], list[list[list[float]]]()
    for result in results:
        tokens = list[list[float]]()
        for number, versions in zip(result.number.tensor.tolist(), result.versions.tensor.tolist(), strict=True):
            step, row = divmod(number, size)
            draw = noise_of(step, row, len(versions), dataflow)
            before, made = float(number), list[float]()
            for noise, version in zip(draw, versions, strict=True):
                made.append(before := next_token(before, weights[version], noise))
            tokens.append(made)
        batches.append(tokens)
        weights.append(0.9 * weights[-1] + 0.1 * float(torch.tensor(tokens, dtype=torch.float64).mean()))
    return batches


def test_tensors_in_flight_go_from_gpu_to_gpu_and_each_version_arrives_as_it_was_exported(ray_cluster: Any) -> None:
    """The actor's next update writes the memory that it has exported, while the engine may still read."""
    tokens = 12
    places = hf.Deployment(
        engine=hf.place(TensorEngine, tokens, 0.02, pool=hf.ResourcePool([2])),
        actor=hf.place(TensorActor, 0.05, pool=hf.ResourcePool([1])),
    )
    plan = tensors_in_flight.compile(places, dims={B: SIZE, R: tokens})
    loads = [step.node for step in plan.steps if plan.loads_in_flight(step)]
    assert [edge.transport for edge in plan.edges if edge.target in loads] == ["cuda ipc"]
    with plan.launch("ray", seed=SEED, deadline=60) as running:
        results = list(running.stream(prompts(6, SIZE)))
    assert [result.tokens.tensor.tolist() for result in results] == remade(results, SIZE, "tensors_in_flight")
    assert any(result.versions.tensor.max() for result in results)


def test_an_actor_whose_weights_are_copied_trains_on_while_they_wait_for_their_engine(
    ray_cluster: Any, tmp_path: Path
) -> None:
    """A load comes behind the calls that were submitted before it, and still gets the weights of its own version."""
    places = hf.Deployment(
        engine=hf.place(TensorEngine, TOKENS, 0.05, pool=hf.ResourcePool([1])),
        actor=hf.place(TensorActor, pool=hf.ResourcePool([1]), transport="cuda ipc"),
    )
    plan = tensors_between_calls.compile(places, dims={B: SIZE, R: TOKENS})
    [load] = [step.node for step in plan.steps if step.label == "engine.load"]
    assert [edge.transport for edge in plan.edges if edge.target == load] == ["cuda ipc"]
    trace = tmp_path / "steps.json"
    with plan.launch("ray", seed=SEED, deadline=60) as running, running.trace(trace):
        results = list(running.stream(prompts(6, SIZE)))
    with plan.launch("local", seed=SEED) as local:
        expected = list(local.stream(prompts(6, SIZE)))
    for result, same in zip(results, expected, strict=True):
        assert result.tokens.tensor.tolist() == same.tokens.tensor.tolist()
        assert result.versions.tensor.tolist() == same.versions.tensor.tolist()
    first, second, *_ = [{call.name: call for call in step.calls} for step in read_trace(trace.read_text())]
    assert second["actor.update"].start < first["engine.load"].start


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*lost rank:hfdsl.errors.HfWarning")
def test_weights_that_were_to_be_read_in_the_memory_of_a_lost_process_are_sent_again(
    ray_cluster: Any, tmp_path: Path
) -> None:
    """The actor ends while its weights of the steps before wait for calls of the engine."""

    def plan_with(actor: type[TensorActor], *args: Any) -> CompiledPlan:
        places = hf.Deployment(
            engine=hf.place(TensorEngine, TOKENS, 0.1, pool=hf.ResourcePool([1])),
            actor=hf.place(actor, 0.0, *args, pool=hf.ResourcePool([1]), transport="cuda ipc"),
        )
        return tensors_between_calls.compile(places, dims={B: SIZE, R: TOKENS})

    with plan_with(TensorActor).launch("local", seed=SEED) as running:
        expected = [result.tokens.tensor.tolist() for result in running.stream(prompts(6, SIZE))]
    plan = plan_with(DyingActor, 2, str(tmp_path / "died"))
    with plan.launch("ray", seed=SEED, deadline=60, retries=hf.Retries()) as running:
        assert [result.tokens.tensor.tolist() for result in running.stream(prompts(6, SIZE))] == expected
        assert len(running.recoveries) == 1


def test_a_launch_refuses_a_transport_that_does_not_reach_a_reader(
    ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a launch knows which nodes two pools are on, and which GPUs have a path to each other."""

    class OnOtherNodes(direct.Links):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.reached = frozenset()

    monkeypatch.setattr(direct, "Links", OnOtherNodes)

    def plan_with(transport: TransportName | None) -> CompiledPlan:
        places = hf.Deployment(
            engine=hf.place(TensorEngine, 4, pool=hf.ResourcePool([1], name="engines")),
            actor=hf.place(TensorActor, pool=hf.ResourcePool([1], name="trainer"), transport=transport),
        )
        return tensors_between_calls.compile(places, dims={B: SIZE, R: 4})

    message = (
        "HF524: role 'actor' sends by CUDA IPC, but rank 0 of 'engine' cannot read the memory of rank 0 of 'actor'"
    )
    with pytest.raises(ResourceError, match=message):
        plan_with("cuda ipc").launch("ray", seed=SEED)
    with plan_with("object store").launch("ray", seed=SEED, deadline=60) as running:
        assert len(list(running.stream(prompts(2, SIZE)))) == 2


def test_the_memory_of_weights_that_no_call_will_load_is_freed() -> None:
    loaded = list[int]()

    def arrived(version: int) -> tuple[Any, Callable[[], None]]:
        weights = torch.zeros(1)
        return ref(weights), partial(lambda version, weights: loaded.append(version), version, weights)

    for supersedes in (True, False):
        weights = ArrivedWeights("engine", 0)
        memory = list[Any]()
        for version in (1, 2, 3):
            reference, load = arrived(version)
            memory.append(reference)
            weights.add(version, load, supersedes=supersedes)
            del load
        assert [reference() is not None for reference in memory] == [not supersedes, not supersedes, True]
        if not supersedes:
            assert weights.take(1, most=1) == 1
        assert weights.take(2) == 3
    assert loaded == [3, 1, 3]


@pytest.mark.nightly
@pytest.mark.parametrize(("late", "again"), [("wait", "local"), ("drop", "ray")])
def test_ray_loads_between_tokens_and_a_replay_has_the_same_bits(
    late: Late, again: Literal["local", "ray"], ray_cluster: Any, tmp_path: Path
) -> None:
    log, size = tmp_path / "log", 4
    program = in_flight.given(lag=2, late=late, rows=None if late == "wait" else 2)
    tokens = 12
    plan = program.compile(flight_deployment(engines=2, tokens=tokens, pause=0.02), dims={B: size, R: tokens})
    with plan.launch("ray", seed=SEED, deadline=60) as running:
        results = list(running.stream(prompts(6, size), log=log))
    assert [result.tokens.tensor.tolist() for result in results] == remade(results, size)
    check_decisions(QueueSpec("queue", 2, late, 4 if late == "wait" else 2, size), from_lines(log.read_text()))
    rows = [row for result in results for row in result.versions.tensor.tolist()]
    assert any(row[0] < row[-1] for row in rows), "weights arrived while a call ran"
    with plan.launch(again, seed=SEED, deadline=60) as running:
        assert bits(list(running.stream(prompts(6, size), replay=log))) == bits(results)


@pytest.mark.nightly
def test_calls_that_overlap_on_ray_take_weights_between_their_tokens(ray_cluster: Any, tmp_path: Path) -> None:
    """The first calls of a rank meet, so they are in progress at once; weights that change in a token are an error."""
    log, size, tokens = tmp_path / "log", 4, 12
    places = flight_deployment(engines=2, tokens=tokens, pause=0.02, at_once=3, meet=True)
    plan = in_flight.given(lag=2, late="wait").compile(places, dims={B: size, R: tokens})
    with plan.launch("ray", seed=SEED, deadline=60) as running:
        results = list(running.stream(prompts(6, size), log=log))
    assert [result.tokens.tensor.tolist() for result in results] == remade(results, size)
    check_decisions(QueueSpec("queue", 2, "wait", 4, size), from_lines(log.read_text()))
    rows = [
        (dispatched, versions)
        for result in results
        for dispatched, versions in zip(
            result.from_version.tensor.tolist(), result.versions.tensor.tolist(), strict=True
        )
    ]
    assert all(dispatched <= versions[0] for dispatched, versions in rows), "no token is older than the dispatch"
    assert all(before <= after for _, versions in rows for before, after in pairwise(versions))
