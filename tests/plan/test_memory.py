"""What the plan says that processes hold is what they hold."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

import hfdsl as hf
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.memory import ProcessMemory, process_memory
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.routes import phases
from hfdsl.runtime.running import Running
from hfdsl.runtime.timeline import StepRecord
from tests.nightly import examples
from tests.plan.oracle import B, Program, R, Role, Rows, Total, batch_of, programs, some_rows
from tests.plan.switches import switches

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def record_of(running: Running) -> StepRecord:
    record = running._runner.record
    assert record is not None
    return record


def measured(running: Running) -> dict[Process, int]:
    most: dict[Process, int] = {}
    for result in record_of(running).results:
        if result.group != DRIVER:
            most[result.group, result.rank] = result.peak_bytes  # the most so far: the last one counts
    return most


def sent_bytes(running: Running) -> dict[Process, tuple[int, int]]:
    sent: dict[Process, tuple[int, int]] = {}
    for result in record_of(running).results:
        if result.group != DRIVER:
            payloads, size = sent.get((result.group, result.rank), (0, 0))
            sent[result.group, result.rank] = payloads + len(result.payload_bytes), size + sum(result.payload_bytes)
    return sent


def counted(memory: ProcessMemory) -> bool:
    """Whether every column has a size that is known; names are objects, which count nothing on either side."""
    return all(name.rpartition(".")[2] in {"name", "longest"} for name in memory.unsized) and not any(
        "everywhere" in name or "given" in name or "stages" in name for name in memory.unsized
    )


@many
@given(programs(), switches)
def test_a_process_holds_and_sends_what_the_plan_says(program: Program, optimize: hf.Optimize) -> None:
    plan = program.dataflow().compile(program.deployment(), dims={B: program.rows, R: 2}, optimize=optimize)
    with plan.launch() as running:
        running.step(batch_of(some_rows(program.rows, 0), echo=True))
        [routing] = running._runner.routings.cache.values()
        results = record_of(running).log.query_results
        predicted = process_memory(plan, plan.dims, phases(plan, plan.dims, query_results=results, hints=routing.hints))
        most = measured(running)
        assert predicted.keys() == most.keys()
        custom = {step.group for step in plan.steps if step.custom}
        for process, memory in predicted.items():
            if counted(memory):
                assert most[process] == memory.bytes
            assert most[process] >= memory.bytes
            if counted(memory) and process[0] not in custom:
                assert sent_bytes(running)[process] == (memory.payloads, memory.sent_bytes)


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def total(self, x: hf.i64[B, R]) -> Total:
        return Total(total=int(x.tensor.sum()), largest=0)


@hf.dataflow
def judged(rows: Rows, role: Role, judge: Judge) -> tuple[Rows, Total]:
    first = role.flat(rows)
    total = judge.total(first.x)
    return role.flat(first), total


def plan_of(size: int | None) -> CompiledPlan:
    role = hf.place(Role, 2, pool=hf.ResourcePool([2], name="train"))
    judge = hf.place(Judge, pool=hf.ResourcePool([1], name="score"))
    return judged.compile(hf.Deployment(role=role, judge=judge), dims={B: size, R: 2} if size else {})


def test_the_plan_names_the_step_where_memory_peaks() -> None:
    # A row is 16 bytes of x, 4 of y and 4 of echo. The four rows of the caller go to the node of train once, as one
    # object that both ranks map; each makes two rows of them, and keeps these for the second call.
    train, score = plan_of(4).peaks
    assert (train.process, train.bytes, train.step) == (("role", 0), 4 * 24 + 2 * 24, "role.flat#1")
    assert (train.payloads, train.sent_bytes) == (2, 2 * 16 + 2 * 24), (
        "x for the judge; the second result for the caller"
    )
    assert (score.bytes, score.step, score.unsized) == (4 * 16, "judge.total", ())
    assert set(train.unsized) == {"rows.name", "role.flat.name"}


def test_a_plan_without_sizes_knows_no_peak() -> None:
    assert plan_of(None).peaks == ()
    assert "memory   " not in str(plan_of(None))


def test_a_plan_prints_what_is_held_what_leaves_and_what_is_one_call() -> None:
    text = str(plan_of(4))
    assert "fused    none" in text
    assert "memory   train: values peak at 144 B, plus rows.name" in text
    assert "; a process sends up to 80 B in 2 payloads" in text
    assert "         score: values peak at 64 B on rank 0 in judge.total; " in text
