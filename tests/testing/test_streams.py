"""``check_stream`` holds for programs that keep all they have, and finds what others forget."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError, RoleError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.running import Running
from hfdsl.testing import BrokenQueueError, check_stream
from tests.nightly import examples
from tests.runtime import stage_programs
from tests.runtime.queue_programs import (
    Actor,
    B,
    Engine,
    Judge,
    Prompts,
    Samples,
    chain,
    deployment,
    filtered,
    flow,
    one_pool,
    rows,
)
from tests.runtime.timed_backend import TimedBackend


def launcher(dataflow: Any, place: Callable[[], hf.Deployment] = deployment, size: int = 4) -> Callable[[], Running]:
    plan = dataflow.compile(place(), dims={B: size})
    return lambda: plan.launch(seed=7)


@pytest.mark.parametrize("lag", [1, 3])
def test_laws_hold_for_a_queue(lag: int) -> None:
    check_stream(launcher(flow.given(lag=lag)), rows(8), tries=examples(12), seed=lag)


def test_laws_hold_for_two_queues_in_a_row() -> None:
    check_stream(launcher(chain.given(first=1, second=2)), rows(8), tries=examples(12))


@pytest.mark.parametrize("place", [deployment, one_pool])
def test_laws_hold_for_filters_and_columns_of_all_kinds(place: Callable[[], hf.Deployment]) -> None:
    check_stream(launcher(filtered, place, size=8), rows(7, size=8), tries=examples(12))


def test_laws_hold_for_a_program_without_queues() -> None:
    check_stream(launcher(flow.given(lag=None)), rows(3), tries=1)


class Forgetful(Engine):
    """Its weights are not in its state."""

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Nothing."""


class Counting(Engine):
    """Its samples depend on how many this process has made."""

    made = 0

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Samples:
        Counting.made += 1
        samples = super().generate(prompts)
        return Samples(x=samples.x.tensor + Counting.made, version=samples.version.tensor)


def placed(engine: type[Engine]) -> hf.Deployment:
    roles = {"engine": engine, "judge": Judge, "actor": Actor}
    return hf.Deployment(
        **{name: hf.place(role, pool=hf.ResourcePool([1], use_gpu=False, name=name)) for name, role in roles.items()}
    )


@pytest.mark.parametrize(
    ("engine", "message"),
    [(Forgetful, r"a run with .*'save'.* gave another result"), (Counting, r"repeats the log gave another result 0")],
)
def test_what_is_not_kept_is_found(engine: type[Engine], message: str) -> None:
    with pytest.raises(BrokenQueueError, match=message):
        check_stream(launcher(flow, lambda: placed(engine)), rows(8), interruptions=["save"], tries=4)


class Dims(hf.Dim): ...


class Numbers(hf.Batch):
    x: hf.f32[Dims]


class Silent(hf.Worker):
    """Its update returns nothing, and draws from a generator of its own."""

    def __init__(self) -> None:
        self.total, self.generator = torch.zeros(()), torch.Generator().manual_seed(0)
        self.launched = time.time()

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, numbers: Numbers) -> None:
        self.total = self.total + numbers.x.tensor.sum() * torch.rand((), generator=self.generator)

    def state(self) -> dict[str, Any]:
        kept = {"total": self.total, "generator": self.generator.get_state(), "launched": self.launched}
        return {"policy": kept}

    def load_state(self, state: dict[str, Any]) -> None:
        self.total = state["policy"]["total"]
        self.generator.set_state(state["policy"]["generator"])


class SilentAndRepeated(Silent):
    """Without the time of its launch, which no other run can have."""

    def state(self) -> dict[str, Any]:
        return {"total": self.total, "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state({"policy": state})


class ForgetsItsGenerator(SilentAndRepeated):
    def load_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


@hf.dataflow
def silent(numbers: Numbers, actor: Silent) -> None:
    actor.update(numbers)


def check_silent(role: type[Silent], **options: Any) -> None:
    place = hf.place(role, pool=hf.ResourcePool([2], use_gpu=False, name="actor"))
    plan = silent.compile(hf.Deployment(actor=place), dims={Dims: 2})
    batches = [Numbers(x=torch.arange(2.0) + number) for number in range(5)]
    retries = options.pop("retries", None)
    check_stream(lambda: plan.launch(seed=0, retries=retries), batches, **options)


@pytest.mark.parametrize("retries", [None, hf.Retries(attempts=2, every=2)])
@pytest.mark.parametrize("interruption", ["save", "kill"])
def test_a_state_that_no_result_shows_is_compared(interruption: Any, retries: hf.Retries | None) -> None:
    check_silent(SilentAndRepeated, interruptions=[interruption], retries=retries)
    lacks = (
        r"ended with another state of rank 0 of 'actor', which its state\(\) or load_state\(\) may lack: column 'total'"
    )
    with pytest.raises(BrokenQueueError, match=lacks):
        check_silent(ForgetsItsGenerator, interruptions=[interruption], retries=retries)


def test_a_state_that_no_run_repeats_is_left_out() -> None:
    check_silent(Silent, interruptions=["save"])


def test_runs_that_load_no_checkpoint_save_no_states() -> None:
    class Broken(Silent):
        def state(self) -> dict[str, Any]:
            raise ValueError("no state")

    check_silent(Broken, interruptions=["leave", "raise"])


class OneVersion(stage_programs.Actor):
    """It does not expect rows of several versions in a batch."""

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=8)
    def update(self, batch: stage_programs.Scored) -> stage_programs.Trained:
        if len(set(hf.current_call().row_versions or ())) > 1:
            raise ValueError("rows of several versions")
        return super().update(batch)


def test_what_only_late_groups_show_is_found_with_seconds() -> None:
    def check(actor: type[stage_programs.Actor], seconds: Any) -> None:
        roles = stage_programs.stage_deployment()
        deployment = hf.Deployment(
            engine=roles["engine"], judge=roles["judge"], actor=hf.place(actor, pool=roles["actor"].pool)
        )
        plan = stage_programs.deciding.given(late="drop").compile(deployment, dims={stage_programs.B: 4})
        check_stream(lambda: plan.launch(seed=7), stage_programs.prompts(8, 4), tries=1, seconds=seconds)

    slow = {"engine.generate": stage_programs.GivenSeconds([[1, 9]]), "actor.update": 1.0}
    check(stage_programs.Actor, slow)
    check(OneVersion, None)
    with pytest.raises(RoleError, match="rows of several versions"):
        check(OneVersion, slow)


def timed_launcher(late: Late) -> Callable[[], Running]:
    """A program on processes whose second rank is slow in the first launch."""
    plan = stage_programs.deciding.given(late=late).compile(
        stage_programs.stage_deployment(), dims={stage_programs.B: 4}
    )
    launches = count()

    def launch() -> Running:
        seconds = {
            "engine.generate": stage_programs.GivenSeconds([[1, 9 if next(launches) == 0 else 1]]),
            "actor.update": stage_programs.GivenSeconds([[1]]),
        }
        return plan.launch(lambda plan, seed, **_: TimedBackend(plan, seed, seconds), seed=7)

    return launch


@pytest.mark.parametrize("late", ["drop", "refill"])
def test_a_run_that_decides_by_time_keeps_the_laws_through_interruptions(late: Late) -> None:
    launch, queued = timed_launcher(late), list[list[int]]()
    for _ in range(2):
        with launch() as running:
            queued.append([len(running.queues[0].groups) for _ in running.stream(stage_programs.prompts(8, 4))])
    assert queued[0] != queued[1], "they decide differently"
    check_stream(timed_launcher(late), stage_programs.prompts(8, 4), tries=4)


def test_a_run_that_decides_by_time_and_forgets_its_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Running, "load", lambda running, folder: None)
    with pytest.raises(BrokenQueueError, match=r"a run with .*'save' at .*:\ngroup 0 was dispatched twice"):
        check_stream(timed_launcher("drop"), stage_programs.prompts(8, 4), interruptions=["save"])


LAUNCHES = "a function that launches a plan, as in lambda: plan.launch(seed=0)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interruptions": ["saved"]}, "HF921: check_stream: no interruption is called 'saved'; did you mean 'save'?"),
        ({"tries": -1}, "HF921: check_stream: tries= takes a whole number of at least 0, got -1"),
        ({"batches": []}, "HF922: check_stream would compare nothing: there are no batches"),
        ({"batches": 3}, "HF921: check_stream: batches takes batches in a list, got 3"),
        ({"launch": 3}, f"HF921: check_stream: launch takes {LAUNCHES}, got 3"),
        ({"launch": lambda: None}, f"HF921: check_stream: launch takes {LAUNCHES}, got one that returns None"),
    ],
)
def test_arguments_are_validated(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        check_stream(**{"launch": launcher(flow), "batches": rows(3), **arguments})
    assert str(refused.value) == message


def test_batches_may_come_from_an_iterator() -> None:
    check_stream(launcher(flow), iter(rows(4)), tries=1, interruptions="leave")  # type: ignore[arg-type]
