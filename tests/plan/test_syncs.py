# mypy: disable-error-code="empty-body"
"""What a plan says of its syncs: bytes, peaks and times, from the layouts that both sides declare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.delta_memory import BLOCK_WORDS
from hfdsl.plan.gpu_memory import _added, gpu_peaks
from hfdsl.plan.message_memory import buffer_bytes
from hfdsl.plan.predict import BANDWIDTHS, LATENCY_SECONDS
from hfdsl.plan.resharding import compile_schedule
from hfdsl.plan.syncs import SyncTraffic
from hfdsl.protocols.layouts import ByName, Experts, Generation, Layout, Only, Parameter, Replicas, Slices
from hfdsl.rl.workers.actor import FROM_FIRST
from hfdsl.tools.plan_json import plan_as_dict
from tests.check.prelude import B, Dispatch, Engine, Prompts, register
from tests.check.prelude import Trainer as Undeclared

WEIGHTS = (Parameter("a", (8, 4), "float32"), Parameter("b", (8, 2), "bfloat16"))  # 128 and 32 bytes


class Trainer(Undeclared):
    @register(FROM_FIRST)
    @hf.exports("policy", layout=Slices(0))
    def weights(self) -> dict[str, list[float]]: ...

    @staticmethod
    def state_parameters(*parameters: Parameter) -> dict[str, tuple[Parameter, ...]]:
        return {"policy": parameters}


class Sized(Engine):
    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, *parameters: Parameter, layout: Layout) -> dict[str, dict[str, int]]:
        return {"": {"weights": 1000}}


class Beside(Sized):
    """It keeps its weights in host memory, beside an engine."""

    @staticmethod
    def samples_with(*parameters: Parameter, layout: Layout) -> str:
        return "vllm"


@hf.dataflow
def flow(prompts: Prompts, trainer: Trainer, engine: Engine) -> None:
    trainer.update(engine.generate(prompts))
    hf.sync(trainer, engine)


NARROW = tuple(replace(parameter, dtype="bfloat16") for parameter in WEIGHTS)  # 64 and 32 bytes


def planned(
    engine_mesh: hf.Mesh,
    layout: Layout,
    *,
    shared: bool = False,
    use_gpu: bool = True,
    role: type[Engine] = Engine,
    loaded: tuple[Parameter, ...] = WEIGHTS,
) -> CompiledPlan:
    pool = hf.ResourcePool([4], name="train", use_gpu=use_gpu)
    second_pool = pool if shared else hf.ResourcePool([engine_mesh.world_size], name="engines", use_gpu=use_gpu)
    trainer = hf.place(Trainer, *WEIGHTS, pool=pool, mesh=hf.Mesh(dp=2, tp=2))
    engine = hf.place(role, *loaded, layout=layout, pool=second_pool, mesh=engine_mesh)
    return flow.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64})


def test_a_sync_to_other_gpus() -> None:
    [sync] = planned(hf.Mesh(tp=2), Slices(0)).syncs
    assert (sync.needed, sync.received, sync.redundant, sync.moved) == (80, 80, 0, 160)
    assert sync.peak == 160  # one bucket holds all
    assert not sync.gathers
    assert sync.seconds == pytest.approx(LATENCY_SECONDS + 80 / BANDWIDTHS["gpu"])  # each trainer sends 40
    [sync] = planned(hf.Mesh(dp=8), Replicas()).syncs
    assert (sync.needed, sync.received, sync.moved) == (160, 160, 1280)
    assert sync.seconds == pytest.approx(LATENCY_SECONDS + 1280 / 4 / BANDWIDTHS["gpu"])  # the trainers are busiest


class Whole(Trainer):
    """It has weights that a broadcast reads where they are."""

    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, *parameters: Parameter) -> dict[str, dict[str, int]]:
        return {"": {"weights": 2000}}

    def held_weights(self, state: str) -> dict[str, list[float]]: ...


def states_nothing(*parameters: Parameter, **layout: Layout) -> dict[str, tuple[Parameter, ...]]:
    return {}


LARGE = Parameter("a", (2**12, 2**9), "bfloat16", contiguous=True)  # 4 MiB
SMALL = Parameter("b", (8,), "bfloat16", contiguous=True)
UNKNOWN = replace(LARGE, contiguous=False)
WIDE = replace(LARGE, dtype="float32")


@pytest.mark.parametrize(
    ("stated", "gpus", "leaving", "arriving"),
    [
        (((LARGE, SMALL), (LARGE, SMALL)), (True, True), 16, 16),
        (((UNKNOWN, SMALL), (LARGE, SMALL)), (True, True), LARGE.bytes + 16, 16),
        (((LARGE, SMALL), (UNKNOWN, SMALL)), (True, True), 16, LARGE.bytes + 16),
        (((WIDE, SMALL), (LARGE, SMALL)), (True, True), LARGE.bytes + 16, 16),  # converted in a buffer
        (((), (LARGE, SMALL)), (True, True), LARGE.bytes + 16, 16),  # what one side states says nothing of the other
        (((LARGE, SMALL), ()), (True, True), 16, LARGE.bytes + 16),
        (((LARGE, SMALL), (LARGE, SMALL)), (False, False), 16, 16),
        (((LARGE, SMALL), (LARGE, SMALL)), (True, False), LARGE.bytes + 16, 16),  # through host memory
        (((LARGE, SMALL), (LARGE, SMALL)), (False, True), 16, LARGE.bytes + 16),
    ],
)
def test_large_contiguous_parts_take_no_buffer(
    stated: tuple[tuple[Parameter, ...], tuple[Parameter, ...]], gpus: tuple[bool, bool], leaving: int, arriving: int
) -> None:
    class SilentTrainer(Whole):
        state_parameters = staticmethod(states_nothing)

    class SilentEngine(Engine):
        state_parameters = staticmethod(states_nothing)

    pools = [hf.ResourcePool([1], use_gpu=use_gpu) for use_gpu in gpus]
    trainer, engine = Whole if stated[0] else SilentTrainer, Engine if stated[1] else SilentEngine
    deployment = hf.Deployment(
        trainer=hf.place(trainer, *stated[0], pool=pools[0]),
        engine=hf.place(engine, *stated[1], layout=Replicas(), pool=pools[1]),
    )
    [sync] = flow.compile(deployment, {B: 64}).syncs
    assert (sync.leaving, sync.peak - sync.needed) == (leaving, arriving)


def test_a_sender_without_a_part_of_a_bucket_skips_it() -> None:
    """Its two turns may then be two large buckets, between which another sender has a small one."""
    names = {"a0": 4 * 10**5, "b0": 10**5, "a1": 4 * 10**5, "b1": 10**5}
    weights = [Parameter(name, (size,), "float32") for name, size in names.items()]
    stages = ByName({"a*": Only(axis="pp", at=(0,)), "b*": Only(axis="pp", at=(1,))})
    schedule = compile_schedule(weights, stages, hf.Mesh(pp=2), Replicas(), hf.Mesh(), bucket_bytes=3_600_000)
    assert [bucket.bytes for bucket in schedule.buckets] == [1_600_000, 400_000] * 2
    turns = [[message] for bucket in schedule.messages_from(0) for message in bucket]
    allocated = sum(turn[0].transfers[0].bytes for turn in turns)
    assert buffer_bytes(schedule, "exports", []) == allocated == 3_200_000


def test_a_rank_has_buffers_for_its_own_experts() -> None:
    experts = [Parameter(f"experts.{number}.weight", (4, 4), "float32") for number in range(4)]
    schedule = compile_schedule(experts, Replicas(), hf.Mesh(), Experts(4), hf.Mesh(tp=4))
    assert schedule.received == (64,) * 4
    assert buffer_bytes(schedule, "loads", []) == 64
    assert buffer_bytes(schedule, "exports", []) == 2 * 64  # a turn for each of two readers


def test_both_sides_of_a_sync_have_buffers() -> None:
    pools = [hf.ResourcePool([1], name=name) for name in ("train", "engines")]
    trainer = hf.place(Whole, *WEIGHTS, pool=pools[0])
    engine = hf.place(Sized, *WEIGHTS, layout=Replicas(), pool=pools[1])
    plan = flow.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    [sync] = plan.syncs
    assert (sync.leaving, sync.peak) == (160, 320)
    added = {step.label: _added(plan, plan.syncs, step) for step in plan.steps}
    assert added["trainer.weights"] == {"trainer": {"leaving weights": 160}}
    assert added["engine.load"] == {"trainer": {"leaving weights": 160}, "engine": {"arriving weights": 160}}
    assert added["trainer.update"] == {}


def test_a_sync_in_the_same_processes() -> None:
    [sync] = planned(hf.Mesh(dp=2, tp=2, gen_tp=1), Generation(Slices(0)), shared=True).syncs
    assert (sync.needed, sync.received, sync.redundant, sync.moved) == (160, 80, 80, 320)
    assert sync.gathers
    [sync] = planned(hf.Mesh(dp=2, tp=2), Slices(0), shared=True).syncs
    assert (sync.received, sync.moved, sync.buckets, sync.seconds) == (0, 0, 0, 0.0)


def test_weights_travel_in_the_dtype_of_the_engine() -> None:
    [sync] = planned(hf.Mesh(tp=2), Slices(0), loaded=NARROW).syncs
    assert (sync.needed, sync.received, sync.peak, sync.moved) == (48, 48, 96, 96)
    layout, mesh = Generation(Slices(0)), hf.Mesh(dp=2, tp=2, gen_tp=1)
    [sync] = planned(mesh, layout, shared=True, loaded=NARROW).syncs
    assert (sync.needed, sync.received, sync.moved) == (96, 48, 192)
    assert sync.redundant == 80  # the trainer's own half, in its own dtypes


def test_a_sync_between_processes_without_gpus() -> None:
    [sync] = planned(hf.Mesh(tp=2), Slices(0), use_gpu=False).syncs
    assert sync.seconds == pytest.approx(LATENCY_SECONDS + 80 / BANDWIDTHS["network"])
    [sync] = planned(hf.Mesh(tp=4), Replicas(), use_gpu=False, shared=True).syncs
    assert sync.seconds == pytest.approx(LATENCY_SECONDS + 80 / BANDWIDTHS["copy"])


@pytest.mark.parametrize("role", [Sized, Beside])
def test_a_plan_prints_its_syncs_and_counts_their_buckets(role: type[Engine]) -> None:
    plan = planned(hf.Mesh(tp=2), Slices(0), role=role)
    [line] = [line for line in str(plan).splitlines() if line.startswith("sync")]
    assert "a rank needs up to 80 B, receives up to 80 B, and has at most 160 B at once; 160 B in all" in line
    assert "engines 512.0 MiB of each GPU at engine.load: engine weights 1000 B, arriving weights 80 B" in str(plan)
    [sync] = plan_as_dict(plan)["syncs"]
    labels = [next(step.label for step in plan.steps if step.node == sync[end]) for end in ("source", "target")]
    assert labels == ["trainer.weights", "engine.load"]
    assert (sync["state"], sync["received"], sync["moved"]) == ("policy", 80, 160)
    assert set(sync) == set(SyncTraffic.__dataclass_fields__) - {"source_node", "target_node"}


@pytest.mark.parametrize(("seconds", "duration"), [(0.0005, "0.5 ms"), (0.141, "141 ms"), (5.934, "5.93 s")])
def test_a_sync_says_how_long_it_takes(seconds: float, duration: str) -> None:
    sync = next(iter(planned(hf.Mesh(tp=2), Slices(0)).syncs))
    assert str(replace(sync, seconds=seconds)).endswith(f"; 160 B in all, {duration}")


class SizedTrainer(Trainer):
    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, *parameters: Parameter) -> dict[str, dict[str, int]]:
        return {"": {"weights": 2000}}


class InFlight(Sized):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Slices(0), during="generate")
    def load(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def queued(prompts: Prompts, trainer: Trainer, engine: InFlight) -> None:
    trainer.update(hf.queue(engine.generate(prompts), lag=2, late="wait"))
    hf.sync(trainer, engine, during="generate")


@pytest.mark.parametrize(("program", "step"), [(flow, "load"), (queued, "generate")])
def test_weights_that_are_read_in_the_memory_of_others_are_there_as_a_whole(program: Any, step: str) -> None:
    """Two processes share a GPU; in flight, copies on both sides are there while the engine generates."""
    pool = hf.ResourcePool([1], name="device")
    trainer = hf.place(SizedTrainer, *WEIGHTS, pool=pool, colocate=False)
    engine = hf.place(InFlight, *WEIGHTS, layout=Slices(0), pool=pool, colocate=False)
    plan = program.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    [sync] = plan.syncs
    assert (sync.received, sync.copied, sync.peak) == (160, 160, 320)
    [peak] = gpu_peaks(plan, plan.syncs)
    assert peak.step == f"engine.{step}"
    assert peak.roles == {
        "trainer": {"weights": 2000, "copied weights": 160},
        "engine": {"weights": 1000, "arriving weights": 160},
    }


@hf.dataflow
def queued_between_calls(prompts: Prompts, trainer: Trainer, engine: Sized, *, lag: int = 3) -> None:
    trainer.update(hf.queue(engine.generate(prompts), lag=lag, late="wait"))
    hf.sync(trainer, engine)


@pytest.mark.parametrize(("lag", "copies"), [(1, 1), (3, 3)])
def test_behind_a_queue_as_many_copies_wait_as_its_lag_allows(lag: int, copies: int) -> None:
    trainer = hf.place(SizedTrainer, *WEIGHTS, pool=hf.ResourcePool([1], name="trainers"), transport="cuda ipc")
    engine = hf.place(Sized, *WEIGHTS, layout=Slices(0), pool=hf.ResourcePool([1], name="engines"))
    plan = queued_between_calls.given(lag=lag).compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    [sync] = plan.syncs
    assert (sync.copied, sync.waiting) == (160, copies)
    for step in plan.steps:
        assert _added(plan, plan.syncs, step)["trainer"] == {"copied weights": 160 * copies}


def test_copies_for_several_readers_add_up() -> None:
    @hf.dataflow
    def twice(prompts: Prompts, trainer: Trainer, engine: InFlight, judge: InFlight) -> None:
        trainer.update(engine.generate(prompts))
        hf.sync(trainer, engine, judge)

    pool = hf.ResourcePool([1], name="device")
    reader = hf.place(InFlight, *WEIGHTS, layout=Slices(0), pool=pool, colocate=False)
    trainer = hf.place(SizedTrainer, *WEIGHTS, pool=pool, colocate=False)
    plan = twice.compile(hf.Deployment(trainer=trainer, engine=reader, judge=reader), {B: 64})
    assert [sync.copied for sync in plan.syncs] == [160, 160]
    [export] = [step for step in plan.steps if step.label == "trainer.weights"]
    assert _added(plan, plan.syncs, export) == {"trainer": {"copied weights": 320}}


def test_a_sync_of_changes_keeps_what_it_has_sent() -> None:
    """Four trainers hold halves twice. Each sends half of its own, or to eight engines all of it, once each."""
    trainer = hf.place(SizedTrainer, *WEIGHTS, pool=hf.ResourcePool([4], name="train"), mesh=hf.Mesh(dp=2, tp=2))
    for mesh, kept in ((hf.Mesh(tp=2), 40), (hf.Mesh(dp=8), 80)):
        layout = Slices(0) if mesh.tp == 2 else Replicas()
        engines = hf.ResourcePool([mesh.world_size], name="engines")
        engine = hf.place(Sized, *WEIGHTS, layout=layout, pool=engines, mesh=mesh)
        plan = flow.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64}, optimize=hf.Optimize(deltas=True))
        [sync] = plan.syncs
        arriving = 3 * 2 * BLOCK_WORDS  # a message is whole blocks; as the rank has it, and two in transit
        assert (sync.kept, sync.peak) == (kept, sync.needed + arriving)
        assert f"a rank keeps {kept} B of what it sent" in str(sync)
        roles = {role: parts for peak in gpu_peaks(plan, plan.syncs) for role, parts in peak.roles.items()}
        assert roles["trainer"]["weights sent last"] == kept
        assert roles["engine"]["arriving weights"] == arriving
        update = next(step for step in plan.steps if step.label == "trainer.update")
        assert _added(plan, plan.syncs, update) == {"trainer": {"weights sent last": kept}}


def test_what_does_not_go_bucket_by_bucket_keeps_nothing() -> None:
    pool = hf.ResourcePool([1], name="device")
    trainer = hf.place(SizedTrainer, *WEIGHTS, pool=pool, colocate=False)
    engine = hf.place(InFlight, *WEIGHTS, layout=Slices(0), pool=pool, colocate=False)
    plan = flow.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64}, optimize=hf.Optimize(deltas=True))
    assert [(sync.kept, sync.copied) for sync in plan.syncs] == [(0, 160)]


def test_a_sync_without_layouts_has_no_line() -> None:
    @hf.dataflow
    def undeclared(prompts: Prompts, trainer: Undeclared, engine: Engine) -> None:
        trainer.update(engine.generate(prompts))
        hf.sync(trainer, engine)

    class Plain(Engine):
        @register(Dispatch.ONE_TO_ALL)
        @hf.loads("policy")
        def load(self, weights: dict[str, list[float]]) -> None: ...

    trainer = hf.place(Undeclared, *WEIGHTS, pool=hf.ResourcePool([2], name="train"))
    engine = hf.place(Plain, *WEIGHTS, pool=hf.ResourcePool([2], name="engines"))
    assert undeclared.compile(hf.Deployment(trainer=trainer, engine=engine), {B: 64}).syncs == ()
    nothing = hf.place(Engine, pool=hf.ResourcePool([2], name="engines"))
    trainer = hf.place(Undeclared, pool=hf.ResourcePool([2], name="train"))
    assert undeclared.compile(hf.Deployment(trainer=trainer, engine=nothing), {B: 64}).syncs == ()
