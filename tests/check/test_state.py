"""Staleness: what a check says of random loops, against what their copies lack when they run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.check.fixtures import hf709_twice as twice


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.i64[B]


class Gains(hf.Batch):
    gain: hf.f32[B]


class Trainer(hf.Worker):
    """Its weights are the list of the steps in which they were updated."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.step = 0

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> None:
        self.updates.append(self.step)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def reinforce(self, rows: Rows, gains: Gains) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def follow(self, weights: list[int]) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[int]:
        return list(self.updates)


class Engine(hf.Worker):
    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.has, self.late = trainer, list[int](), 0

    def _read(self, rows: Rows) -> Rows:
        self.late = max(self.late, len({*self.trainer.updates[len(self.has) :]}))
        return rows

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        return self._read(rows)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[int]) -> None:
        self.has = weights


class Correcting(Trainer):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=2)
    def update(self, rows: Rows) -> None:
        self.updates.append(self.step)


class Tolerant(Engine):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy", staleness=1)
    def generate(self, rows: Rows) -> Rows:
        return self._read(rows)


class Scorer(Engine):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def score(self, rows: Rows) -> Rows:
        return rows


class Policy(Trainer):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        return rows


def flow_of(calls: list[tuple[str, int]], engine_type: type[Engine]) -> hf.Dataflow[..., Any]:
    def program(rows: Rows, trainer: Trainer, left: Any, right: Any) -> None:
        for name, which in calls:
            engine = (left, right)[which]
            match name:
                case "read":
                    engine.generate(rows)
                case "update":
                    trainer.update(rows)
                case "sync":
                    hf.sync(trainer, engine)
                case "both":
                    hf.sync(trainer, left, right)

    program.__annotations__ |= {"rows": Rows, "trainer": Trainer, "left": engine_type, "right": engine_type}
    return hf.dataflow(program)


calls = st.lists(st.tuples(st.sampled_from(["read", "update", "sync", "both"]), st.integers(0, 1)), max_size=8)


@given(calls, st.sampled_from([Engine, Tolerant]))
def test_the_check_predicts_the_staleness_of_a_run(chosen: list[tuple[str, int]], engine_type: type[Engine]) -> None:
    flow = flow_of(chosen, engine_type)
    trainer = Trainer()
    engines = [engine_type(trainer), engine_type(trainer)]
    lates = []
    for step in range(6):
        trainer.step = step
        for engine in engines:
            engine.late = 0
        flow(Rows(x=torch.zeros(2, dtype=torch.int64)), trainer, *engines)
        lates.append([engine.late for engine in engines])
    allowed = 1 if engine_type is Tolerant else 0
    expected = []
    for which in range(2):
        loaded = any(name == "both" or call == ("sync", which) for call in chosen for name in call[:1])
        grows = lates[5][which] > lates[4][which]
        assert not (grows and loaded)
        expected += ["HF510"] if grows else ["HF701"] if lates[5][which] > allowed else []
    codes = [code for code in flow.check().codes if code != "HF602"]
    assert sorted(codes) == sorted(expected), str(flow.check())


def test_weights_that_nothing_trains_do_not_stand_in_for_those_that_learn() -> None:
    def frozen_alone(rows: Rows, trainer: Trainer, frozen: Trainer, engine: Engine) -> None:
        hf.sync(frozen, engine)
        sampled = engine.generate(rows)
        trainer.reinforce(sampled, gained(sampled))

    def frozen_last(rows: Rows, trainer: Trainer, frozen: Trainer, engine: Engine) -> None:
        sampled = engine.generate(rows)
        trainer.reinforce(sampled, gained(sampled))
        hf.sync(trainer, engine)
        hf.sync(frozen, engine)

    for program in (frozen_alone, frozen_last):
        [finding] = hf.dataflow(program).check().findings
        assert finding.code == "HF510"
        assert "'engine' loads that of 'frozen', which nothing trains" in finding.message


def test_an_engine_of_its_own_may_hold_frozen_weights() -> None:
    def two_engines(rows: Rows, trainer: Trainer, frozen: Trainer, engine: Engine, scorer: Scorer) -> None:
        trainer.update(scorer.score(engine.generate(rows)))
        hf.sync(trainer, engine)
        hf.sync(frozen, scorer)

    def own_samples(rows: Rows, policy: Policy, frozen: Trainer, scorer: Scorer) -> None:
        hf.sync(frozen, scorer)
        policy.update(scorer.score(policy.generate(rows)))

    def frozen_first(rows: Rows, trainer: Trainer, frozen: Trainer, engine: Engine) -> None:
        hf.sync(frozen, engine)
        hf.sync(trainer, engine)
        trainer.update(engine.generate(rows))

    def imitation_of_a_teacher(rows: Rows, trainer: Trainer, frozen: Trainer, engine: Engine) -> None:
        hf.sync(frozen, engine)
        trainer.update(engine.generate(rows))

    def average_of_weights(rows: Rows, trainer: Trainer, average: Trainer, engine: Engine) -> None:
        sampled = engine.generate(rows)
        trainer.reinforce(sampled, gained(sampled))
        average.follow(trainer.weights())
        hf.sync(average, engine)

    for program in (two_engines, own_samples, frozen_first, imitation_of_a_teacher, average_of_weights):
        assert hf.dataflow(program).check().codes == ()


def test_a_copy_of_a_copy_is_as_old_as_its_source() -> None:
    class Relay(Engine):
        @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
        @hf.exports("policy")
        def weights(self) -> list[int]:
            return self.has

    def program(rows: Rows, trainer: Trainer, relay: Any, engine: Engine) -> Rows:
        rollout = engine.generate(rows)
        trainer.update(rollout)
        hf.sync(relay, engine)
        hf.sync(trainer, relay)
        return rollout

    program.__annotations__ |= {"relay": Relay}
    [finding] = hf.dataflow(program).check()
    assert (finding.code, "1 step old" in finding.message) == ("HF701", True)


def test_a_copy_that_is_too_old_is_one_mistake_and_says_what_is_allowed() -> None:
    class Relay(Engine):
        @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
        @hf.exports("policy")
        def weights(self) -> list[int]:
            return self.has

    def late(rows: Rows, trainer: Trainer, first: Any, second: Any, engine: Any) -> None:
        engine.generate(rows)
        engine.generate(rows)
        trainer.update(rows)
        hf.sync(second, engine)
        hf.sync(first, second)
        hf.sync(trainer, first)

    late.__annotations__ |= {"first": Relay, "second": Relay, "engine": Tolerant}
    [finding] = [finding for finding in hf.dataflow(late).check() if finding.code == "HF701"]
    assert finding.message.endswith("2 steps old: it allows 1")
    late.__annotations__["engine"] = Engine
    [finding] = [finding for finding in hf.dataflow(late).check() if finding.code == "HF701"]
    assert finding.message.endswith("2 steps old: it must be up to date")


@pytest.mark.parametrize("engine", [Engine, Tolerant])
@pytest.mark.parametrize("place", ["first", "before the update", "between two updates", "last"])
def test_copies_in_front_of_a_queue_have_the_version_of_the_dispatch(place: str, engine: type[Engine]) -> None:
    """A stage that syncs before it updates leaves the engine with the weights before, which no lag counts."""

    def program(rows: Rows, trainer: Correcting, engine: Any) -> None:
        if place == "first":
            hf.sync(trainer, engine)
        batch = hf.queue(engine.generate(rows), lag=2, late="wait")
        if place == "before the update":
            hf.sync(trainer, engine)
        trainer.update(batch)
        if place == "between two updates":
            hf.sync(trainer, engine)
            trainer.update(batch)
        if place == "last":
            hf.sync(trainer, engine)

    program.__annotations__ |= {"engine": engine}
    findings = [finding for finding in hf.dataflow(program).check() if finding.code == "HF701"]
    if place == "last":
        assert findings == []
    else:
        [finding] = findings
        assert finding.message.endswith("'engine' loads it before 'trainer.update' changes it")
        assert finding.notes == ("call hf.sync after 'trainer.update'",)


def test_weights_in_flight_are_sent_after_all_updates() -> None:
    class InFlight(Engine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy", during="generate")
        def load(self, weights: list[int]) -> None: ...

    def program(rows: Rows, trainer: Correcting, engine: Any, *, between: bool = False) -> None:
        batch = hf.queue(engine.generate(rows), lag=2, late="wait")
        trainer.update(batch)
        if between:
            hf.sync(trainer, engine, during="generate")
        trainer.update(batch)
        if not between:
            hf.sync(trainer, engine, during="generate")

    program.__annotations__ |= {"engine": InFlight}
    flow = hf.dataflow(program)
    [finding] = [finding for finding in flow.given(between=True).check() if finding.code in ("HF701", "HF753")]
    assert (finding.code, finding.notes) == ("HF753", ("call hf.sync after all updates of the step",))
    assert "'trainer.update' comes after the sync" in finding.message
    assert not {"HF701", "HF753"} & {*flow.check().codes}


def test_a_copy_that_is_read_in_the_stage_of_the_update_is_read_in_the_order_of_the_program() -> None:
    @hf.dataflow
    def program(rows: Rows, trainer: Correcting, engine: Engine) -> None:
        batch = hf.queue(rows, lag=2, late="wait")
        hf.sync(trainer, engine)
        trainer.update(engine.generate(batch))

    assert "HF701" not in program.check().codes


def test_roles_that_nobody_trains_or_that_load_nothing_are_silent() -> None:
    @hf.dataflow
    def evaluation(rows: Rows, engine: Engine) -> Rows:
        return engine.generate(rows)

    class Frozen(hf.Worker):
        @register(Dispatch.DP_PROTO)
        @hf.reads("policy")
        def log_probs(self, rows: Rows) -> Rows: ...  # type: ignore[empty-body]

    def train(rows: Rows, trainer: Trainer, frozen: Any) -> Rows:
        trainer.update(frozen.log_probs(rows))
        return rows

    train.__annotations__ |= {"frozen": Frozen}
    assert evaluation.check().findings == hf.dataflow(train).check().findings == ()


def test_weights_of_another_state_or_of_a_source_that_nobody_trains_are_silent() -> None:
    class Critic(Trainer):
        @register(Dispatch.THREE_D_PROTO)
        @hf.writes("value")
        def update(self, rows: Rows) -> None: ...

    def program(rows: Rows, critic: Any, engine: Engine, other: Engine) -> Rows:
        critic.update(rows)
        hf.sync(critic, engine)  # of a policy that it never updates
        rollout = engine.generate(rows)
        other.generate(rollout)
        return rollout

    program.__annotations__ |= {"critic": Critic}
    assert hf.dataflow(program).check().codes == ("HF602",)


def test_where_a_call_is_not_understood_no_copy_is_said_to_be_old() -> None:
    @hf.dataflow
    def program(rows: Rows, trainer: Trainer, engine: Engine) -> Rows:
        trainer.update(rows)
        engine.laod(trainer.weights())  # type: ignore[attr-defined]  # the mistake
        return engine.generate(rows)

    assert program.check().codes == ("HF202",)


def test_a_copy_that_is_never_loaded_is_reported_with_the_missing_calls() -> None:
    class Closed(hf.Worker):
        @register(Dispatch.THREE_D_PROTO)
        @hf.writes("policy")
        def update(self, rows: Rows) -> None: ...

    def program(rows: Rows, trainer: Any, engine: Engine) -> Rows:
        trainer.update(rows)
        return engine.generate(rows)

    def advice(role: type) -> tuple[str, ...]:
        program.__annotations__ |= {"trainer": role}
        [finding] = hf.dataflow(program).check().findings
        assert finding.code == "HF510"
        return finding.notes

    sync = "hf.sync(trainer, engine) after 'trainer.update'"
    separate = (
        "or, if another dataflow refreshes 'engine' now and then, give its weights a state of another name, which "
        "'trainer' exports by a second method"
    )
    assert advice(Trainer) == (sync, separate)
    assert advice(Closed) == (f"give Closed a method with @hf.exports, then {sync}", separate)


@hf.function
def gained(rows: Rows) -> Gains:
    return Gains(gain=rows.x.tensor.float())


@hf.function
@hf.reads("policy")
def looked_at(rows: Rows) -> Rows:
    return rows


def test_a_function_holds_no_weights() -> None:
    @hf.dataflow
    def program(rows: Rows, trainer: Trainer) -> Rows:
        trainer.update(rows)
        return looked_at(rows)

    assert program.check().findings == ()


@hf.function
def mixed(first: list[int], second: list[int]) -> list[int]:
    return first if len(first) < len(second) else second


def test_a_mixture_is_as_old_as_what_it_is_made_of() -> None:
    @hf.dataflow
    def fresh(rows: Rows, first: Trainer, second: Trainer, engine: Engine) -> Rows:
        first.update(rows)
        second.update(rows)
        engine.load(mixed(first.weights(), second.weights()))
        return engine.generate(rows)

    @hf.dataflow
    def late(rows: Rows, first: Trainer, second: Trainer, engine: Engine) -> Rows:
        first.update(rows)
        engine.load(mixed(first.weights(), second.weights()))
        second.update(rows)
        return engine.generate(rows)

    assert fresh.check().findings == ()
    [finding] = late.check().findings
    assert finding.message == "'engine.generate' reads 'policy' 1 step old: it must be up to date"
    assert finding.related[1].text == "'second.update' changes it"


def test_of_two_methods_that_load_a_state_a_call_by_name_is_meant() -> None:
    """A sync calls the last of them, which may be the wrong one."""

    @hf.dataflow
    def named(prompts: twice.Prompts, trainer: twice.Trainer, engine: twice.Engine) -> None:
        trainer.update(engine.generate(prompts))
        engine.load_embeddings(trainer.weights())

    assert named.check(None, dims={twice.B: 8}).codes == ()
    assert twice.program.check(None, dims={twice.B: 8}).codes == ("HF709",)
