"""Messages that a user misread: what they say now."""

from __future__ import annotations

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, PerRank, f32, register


class B(hf.Dim): ...


class Steps(hf.Batch):
    observations: f32[B]


class Judged(hf.Batch):
    advantage: f32[B, Literal[1]]


class Flat(hf.Batch):
    advantage: f32[B]


class Both(hf.Batch):
    observations: f32[B]
    advantage: f32[B]


class Settings:
    """A class whose full name would fill a line."""


class Learner(hf.Worker):
    def __init__(self, settings: Settings, role: str) -> None: ...

    @register(Dispatch.DP_PROTO)
    def judge(self, steps: Steps) -> Judged: ...  # type: ignore[empty-body]

    @register(Dispatch.DP_PROTO)
    def flat(self, steps: Steps) -> Flat: ...  # type: ignore[empty-body]

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> float: ...  # type: ignore[empty-body]

    @register(Dispatch.ALL_TO_ALL)
    def limit(self, memory: PerRank[float]) -> None: ...


@hf.function
def flat_loss(advantage: f32[B]) -> Flat: ...  # type: ignore[empty-body]


@hf.function
def column_loss(advantage: f32[B, Literal[1]]) -> Flat: ...  # type: ignore[empty-body]


def only(report: hf.Report) -> hf.Finding:
    [finding] = report.findings
    return finding


def test_two_calls_of_one_method_are_not_called_both() -> None:
    @hf.dataflow
    def program(steps: Steps, learner: Learner) -> Both:
        return hf.merge(Both, steps, learner.flat(steps), learner.flat(steps))

    assert only(program.check()).message.endswith("comes from two calls of 'learner.flat'")


def test_help_removes_a_trailing_1() -> None:
    @hf.dataflow
    def program(steps: Steps, learner: Learner) -> Flat:
        return flat_loss(learner.judge(steps).advantage)  # type: ignore[arg-type]

    assert only(program.check()).notes[0].startswith("drop it where it is produced, .squeeze(-1)")


def test_help_adds_a_missing_trailing_1() -> None:
    @hf.dataflow
    def program(steps: Steps, learner: Learner) -> Flat:
        return column_loss(learner.flat(steps).advantage)  # type: ignore[arg-type]

    assert only(program.check()).notes[0].startswith("add it where it is produced, .unsqueeze(-1)")


def test_a_port_that_declares_the_list_of_which_it_gets_an_entry() -> None:
    @hf.dataflow
    def program(learner: Learner) -> None:
        learner.limit(learner.memory())  # type: ignore[arg-type]

    finding = only(program.check())
    assert finding.code == "HF401"
    assert "is declared PerRank[float], but each rank is given its own entry of the list: float" in finding.message
    assert finding.notes == ("declare the port float",)


def test_a_constructor_is_shown_without_its_annotations() -> None:
    @hf.dataflow
    def program(steps: Steps, learner: Learner) -> Flat:
        return learner.flat(steps)

    deployment = hf.Deployment(learner=hf.place(Learner, Settings(), pool=hf.ResourcePool([1])))
    assert "Learner(settings, role) cannot be built" in only(program.check(deployment)).message


class N(hf.Dim): ...


class Numbers(hf.Batch):
    ids: hf.i64[N]


class Busy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def work(self, numbers: Numbers) -> Numbers:
        return numbers


@hf.dataflow
def idling(numbers: Numbers, busy: Busy, idle: Busy) -> Numbers:
    return busy.work(numbers)


def test_a_size_is_given_for_a_class() -> None:
    messages = {
        finding.message
        for sizes in ({"B": 4}, {N: 0}, 4)
        for finding in idling.check(dims=sizes)  # type: ignore[arg-type, misc]  # wrong on purpose
        if finding.code == "HF302"
    }
    assert messages == {
        "dims= takes dim classes with their sizes, got 'B': 4; write B without quotes",
        "size N = 0 is not a whole number of at least 1",
        "dims= takes a dict of dim classes with their sizes, got 4",
    }


def test_an_idle_role_has_gpus_or_slots() -> None:
    def message(*pool: int, use_gpu: bool) -> str:
        place = hf.place(Busy, pool=hf.ResourcePool(list(pool), use_gpu=use_gpu, name="p"))
        [finding] = idling.check(hf.Deployment(busy=place, idle=place), dims={N: 4})
        return finding.message

    assert message(2, 2, use_gpu=True).startswith("role 'idle' is placed on 4 GPUs of pool 'p'")
    assert message(4, use_gpu=False).startswith("role 'idle' is placed on 4 slots of pool 'p'")
    assert message(1, use_gpu=False).startswith("role 'idle' is placed on 1 slot of pool 'p'")


def test_arguments_in_the_wrong_order_are_no_fix_for_a_machine() -> None:
    @hf.dataflow
    def program(numbers: Numbers, busy: Busy) -> Numbers:
        return busy.work(hf.repeat(2, numbers))  # type: ignore[type-var, arg-type]  # the mistake

    finding = only(program.check())
    assert (finding.code, finding.fixes) == ("HF304", ())


class Gatherer(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def gather(self, lists: hf.PerRank[float]) -> None: ...


def test_a_list_that_every_rank_is_given_whole_is_to_be_made_as_one() -> None:
    @hf.dataflow
    def program(numbers: Numbers, gatherer: Gatherer) -> None:
        gatherer.gather(numbers)  # type: ignore[arg-type]  # the mistake

    finding = only(program.check())
    assert (finding.code, "its own entry" in finding.message) == ("HF401", False)
    assert finding.notes == ("produce it with a protocol that returns one value per rank, such as ONE_TO_ALL",)


class Careless(hf.Worker):
    def judge(self, steps: Steps) -> Judged: ...  # type: ignore[empty-body]


class Selfless(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def judge(steps: Steps) -> Judged: ...  # type: ignore[empty-body,misc]  # noqa: N805


@hf.dataflow
def unregistered(steps: Steps, role: Careless) -> Judged:
    return role.judge(steps)


@hf.dataflow
def without_self(steps: Steps, role: Selfless) -> Judged:
    return role.judge(steps)  # type: ignore[call-arg, misc]


def test_an_unregistered_method_differs_from_a_missing_one() -> None:
    finding = only(unregistered.check())
    assert finding.message == "role 'Careless' has no registered method 'judge'"
    assert finding.notes == (
        "'judge' is not registered: write @register(Dispatch.DP_PROTO), or another protocol, above it",
    )


def test_a_method_without_self_is_named() -> None:
    finding = only(without_self.check())
    assert (finding.code, finding.message) == ("HF118", "'Selfless.judge' has no self: write def judge(self, ...)")
