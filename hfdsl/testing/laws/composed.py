"""The law of composition: two calls, planned together and made by hand."""

from dataclasses import replace
from typing import Any

from hfdsl.check.report import CheckError
from hfdsl.deploy.deployment import Deployment, place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfError
from hfdsl.graph.dataflow import dataflow
from hfdsl.protocols.dispatch import Functions
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.predefined import DP_PROTO
from hfdsl.protocols.register import register
from hfdsl.protocols.transfer import collect, dispatch
from hfdsl.protocols.worker import Worker
from hfdsl.testing.laws.subject import LawSubject
from hfdsl.testing.laws.trial import Breach, Trial, mapped, want
from hfdsl.testing.laws.values import LIST, RECORD, Numbered


def composition(trial: Trial) -> None:
    """A call takes the result of another: a plan, which knows both, gives the same value as both calls by hand."""
    second = Mesh(dp=next(n for n in (3, 2, 1) if trial.case.rows % n == 0))
    by_hand = _by_hand(trial, second)
    if by_hand is None or trial.case.kind is LIST:
        return  # the first call fails by itself, which other laws tell; or there may be no torch to plan with
    trial.case = replace(trial.case, kind=RECORD)  # what plans have
    try:
        planned = _planned(trial.subject, trial.mesh, second, trial.value())
    except CheckError:
        return  # a plan that is refused gives nothing else
    except HfError as error:
        raise Breach(f"by hand two calls in a row work, and their plan fails: {error}") from None
    want(planned == by_hand, f"two calls in a row give {by_hand} by hand, and {planned} in a plan")


def _answer(rows: Numbered) -> Numbered:
    answer: Numbered = RECORD.make(mapped(RECORD.read(rows)))
    return answer


def _by_hand(trial: Trial, second: Mesh) -> list[int] | None:
    try:
        between = trial.run(mapped)
        if len(trial.read(between)) != trial.case.rows:
            return None
    except Exception:  # noqa: BLE001  # whatever a protocol under test does
        return None
    try:
        again, _, _ = dispatch(DP_PROTO, second, (between,), {})
    except HfError as error:
        raise Breach(f"what collect gives cannot be dispatched again: {error}") from None
    return trial.read(collect(DP_PROTO, second, trial.apply(mapped, again[0])))


def _planned(subject: LawSubject, first: Mesh, second: Mesh, rows: Numbered) -> list[int]:
    """The two calls as a dataflow, on the local backend."""
    pair = subject.functions
    mode: Any = _as_dict(pair) if pair is not None else subject.declared

    class First(Worker):
        @register(mode)  # type: ignore[untyped-decorator]  # which of the overloads it is, is known at run time
        def answer(self, rows: Numbered) -> Numbered:
            return _answer(rows)

    class Second(Worker):
        @register(DP_PROTO)
        def answer(self, rows: Numbered) -> Numbered:
            return _answer(rows)

    @dataflow
    def two_calls(rows: Numbered, first: First, second: Second) -> Numbered:
        return second.answer(first.answer(rows))

    pools = {name: ResourcePool([mesh.world_size], name=name) for name, mesh in (("a", first), ("b", second))}
    deployment = Deployment(
        first=place(First, pool=pools["a"], mesh=first), second=place(Second, pool=pools["b"], mesh=second)
    )
    with two_calls.compile(deployment).launch(backend="local") as running:
        return RECORD.read(running.step(rows))


def _as_dict(pair: Functions) -> dict[str, Any]:
    return {"dispatch_fn": pair.dispatch_fn, "collect_fn": pair.collect_fn}
