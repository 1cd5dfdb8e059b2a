"""Optional columns at run time: absence travels, a broken promise is reported, ranks that disagree are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.runtime.running import Running
from tests.runtime import optional_programs as p
from tests.runtime.renamed import renamed

BACKENDS = pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
SIZES = {p.B: 8, p.R: 2}


@pytest.fixture
def cluster(request: pytest.FixtureRequest, backend: str) -> Any:
    return request.getfixturevalue("ray_cluster") if backend == "ray" else None


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def launched(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A launch for all tests in which nothing goes wrong: processes take long to start.

    Actors with values and bare ones are on a pool of two, where a critic shares their processes, and on one of one.
    """
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    pair, single = hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    places = hf.Deployment(
        **{
            f"{name}{pool.world_size}": hf.place(role, *arguments, pool=pool)
            for pool in (pair, single)
            for name, role, *arguments in (
                ("actor", p.Actor, p.Config(True)),
                ("bare", p.Actor, p.Config(False)),
                ("critic", p.Critic),
            )
        }
    )
    plan = renamed(p.declared, "declared", actor="actor2").compile(places, SIZES)
    with plan.launch(request.param) as running:
        yield running


def deployment(config: p.Config, critics: int | None, actors: int = 2) -> hf.Deployment:
    """``critics`` ranks of their own, or the actor's processes."""
    pool = hf.ResourcePool([actors], use_gpu=False)
    second_pool = pool if critics is None else hf.ResourcePool([critics], use_gpu=False)
    return hf.Deployment(actor=hf.place(p.Actor, config, pool=pool), critic=hf.place(p.Critic, pool=second_pool))


def plain(value: Any) -> Any:
    if isinstance(value, p.Sums):
        return value.total.tensor.tolist(), value.hints.objects
    if isinstance(value, p.Rollout):
        values = value.values.tensor.tolist() if value.values is not None else None
        return value.ids.tensor.tolist(), values, value.hint.objects if value.hint is not None else None
    return [plain(inner) for inner in value]


def meant(values: bool, hint: bool) -> Any:
    """What ``carries`` gives, in plain Python."""
    ids = [[2 * i, 2 * i + 1] for i in range(8)]
    hints = [f"h{i}" for i in range(8)]
    totals = [(4 * i + 1) / 2 if values else -(4.0 * i + 1) for i in range(8)]
    shown = hints if hint else ["none"] * 8
    twice = [(total, name) for total, name in zip(totals, shown, strict=True) for _ in range(2)]
    halves = [tuple(map(list, zip(*half, strict=True))) for half in (twice[:8], twice[8:])]
    rollout = (ids, [[a / 2, b / 2] for a, b in ids] if values else None, hints if hint else None)
    return [rollout, (totals, shown), (totals, shown), (totals, ["none"] * 8), halves]


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize(("actors", "critics"), [(2, 2), (2, 1), (1, 2)])
def test_absence_travels(launched: Running, actors: int, critics: int) -> None:
    """Within a process, from two to one, and from one to two."""
    for actor, values in (("actor", True), ("bare", False)):
        roles = {"actor": f"{actor}{actors}", "critic": f"critic{critics}"}
        flow = renamed(p.carries, f"carries_{values}_{actors}_{critics}", **roles)
        running = launched.also(flow.compile(launched.plan.deployment, SIZES))
        for hint in (True, False):
            assert plain(running.step(p.batch(hint))) == meant(values, hint)


@pytest.mark.parametrize("critics", [2, 4])
def test_absence_travels_between_pools(critics: int) -> None:
    for values in (True, False):
        with p.carries.compile(deployment(p.Config(values), critics), SIZES).launch() as running:
            for hint in (True, False):
                assert plain(running.step(p.batch(hint))) == meant(values, hint)


def test_eager_is_the_same() -> None:
    for values in (True, False):
        for hint in (True, False):
            eager = p.carries(p.batch(hint), p.Actor(p.Config(values)), p.Critic())
            assert plain(eager) == meant(values, hint)


@pytest.mark.nightly_cases("ray")
def test_a_promise_that_is_kept_makes_a_column_sure(launched: Running) -> None:
    flow = renamed(p.needs, "needs", actor="actor2", critic="critic1")
    running = launched.also(flow.compile(launched.plan.deployment, SIZES))
    assert plain(running.step(p.batch(False)))[0] == [(4 * i + 1) / 2 for i in range(8)]


@pytest.mark.nightly_cases("ray")
@BACKENDS
def test_a_promise_is_tested_when_it_is_read(cluster: Any, backend: Any) -> None:
    message = r"HF231: hf.present at .*optional_programs.py:\d+: column 'values' of 'actor.undeclared' is absent \(rank"
    with (
        p.needs.compile(deployment(p.Config(False), None, actors=1), SIZES).launch(backend) as running,
        pytest.raises(WiringError, match=message),
    ):
        running.step(p.batch(False))


@pytest.mark.nightly_cases("ray")
def test_rows_are_filtered_by_an_optional_column_that_is_there(launched: Running) -> None:
    def held(sums: p.Sums, filled: p.Marked, hint: bool) -> None:
        assert plain(sums) == ([-2.0 - 16 * i for i in range(4)], [f"h{2 * i}" if hint else "none" for i in range(4)])
        assert filled.ids.tensor[:, 0].tolist() == [0, 4, 8, 12, 0, 4]
        assert (filled.hint is not None) is hint
        assert filled.keep is not None
        assert filled.keep.tensor.tolist() == [True] * 6

    flow = renamed(p.filtered, "filtered", actor="actor2")
    running = launched.also(flow.compile(launched.plan.deployment, SIZES))
    for hint in (True, False):
        for sums, filled in (p.filtered(p.batch(hint), p.Actor(p.Config())), running.step(p.batch(hint))):
            held(sums, filled, hint)


def test_rows_are_not_filtered_by_a_column_that_is_absent() -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    places = hf.Deployment(actor=hf.place(p.Actor, p.Config(False), pool=pool))
    with (
        p.filtered.compile(places, SIZES).launch() as running,
        pytest.raises(WiringError, match=r"HF231: hf.present at .*: column 'keep' of 'actor.mark' is absent \(rank"),
    ):
        running.step(p.batch(False))


def test_a_promise_is_tested_eagerly() -> None:
    with pytest.raises(WiringError, match=r"HF231: hf.present at .*optional_programs.py:\d+ got"):
        p.needs(p.batch(False), p.Actor(p.Config(False)), p.Critic())


@pytest.mark.nightly_cases("ray")
@BACKENDS
@pytest.mark.parametrize("critics", [None, 1])
def test_ranks_that_disagree_are_named(cluster: Any, backend: Any, critics: int | None) -> None:
    plan = p.passes.compile(deployment(p.Config(ranks_with_values=(1,)), critics), SIZES)
    message = (
        "HF810: column 'values' of 'actor.undeclared' is present on rank 1 and absent on rank 0; an optional column"
    )
    with plan.launch(backend) as running:
        with pytest.raises(WiringError, match=message):
            running.step(p.batch(False))
        with pytest.raises(hf.HfError, match="HF808"):
            running.step(p.batch(False))


@pytest.mark.nightly_cases("ray")
@BACKENDS
def test_a_body_is_held_to_what_it_provides(cluster: Any, backend: Any) -> None:
    pool = hf.ResourcePool([1], use_gpu=False)
    places = hf.Deployment(actor=hf.place(p.Actor, p.Config(ranks_with_values=()), pool=pool))
    message = (
        r"HF805: 'actor.generate' is declared provides\('values', when='with_values'\), "
        "by which column 'values' is there, and left it out on rank 0"
    )
    with p.declared.compile(places, SIZES).launch(backend) as running, pytest.raises(WiringError, match=message):
        running.step(p.batch(False))


def test_a_plan_shows_what_may_be_absent() -> None:
    present, absent = (p.carries.compile(deployment(p.Config(values), 4), SIZES) for values in (True, False))
    reads = {(edge.source, edge.target): (edge.columns, edge.bytes) for edge in present.edges}
    others = {(edge.source, edge.target): (edge.columns, edge.bytes) for edge in absent.edges}
    assert set(reads) == set(others)
    first = next(step.node for step in present.steps if step.label == "critic.record#3")
    assert reads[1, first] == (("ids", "hint", "values"), 8 * 2 * 8 + 8 * 2 * 4)
    assert others[1, first] == (("ids", "hint"), 8 * 2 * 8)
    assert "<- prompts (ids, hint?): 128 B and objects from caller" in str(present)
    assert "<- actor.generate (ids, hint?, values): 192 B and objects object store" in str(present)
    assert "<- actor.generate (ids, hint?): 128 B and objects object store" in str(absent)
