"""Several calls in one engine, each in a thread of its own, beside the rows that each would have alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.errors import HfError, ResourceError
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl.engines.handle import EngineHandle, Versioned, VersionedSampled
from hfdsl.runtime.rank.in_flight import ArrivedWeights, TokenLoads
from tests.rl.engines.fake import DIE, VOCABULARY, handle

pytestmark = pytest.mark.usefixtures("forked_engines")

CALL = Call(seed=1, step=0, node=0, rank=0, row_count=4, dataflow="test")
LENGTH, END = 40, 50


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineHandle]:
    lasting = handle(tokens=LENGTH)
    lasting.batch.steps = 2
    yield lasting
    lasting.process.close()


class Role:
    """A role with an engine: the weight of a version is its number."""

    def __init__(self, engine: EngineHandle) -> None:
        self.engine, self.weight, self.loads = engine, 0, engine.process.versions.get("weights", 0) + 1
        self.arrived = ArrivedWeights("engine", 0)

    def weights(self) -> Versioned:
        return Versioned(self.loads, lambda: [("model.weight", torch.tensor([float(self.weight)]))])

    def load(self, version: int) -> None:
        self.weight, self.loads = version, self.loads + 1

    def sample(self, lasts: Sequence[int], version: int) -> tuple[VersionedSampled, TokenLoads]:
        """A call that was dispatched under a version, as a process runs it."""
        loads, ids = TokenLoads(self.arrived, version, None), torch.tensor(lasts)[:, None]
        loads.begin()
        try:
            with in_call(replace(CALL, loads=loads)):
                mask = torch.ones_like(ids).bool()
                return self.engine.sample_in_flight(ids, mask, self.weights, greedy=True), loads
        finally:
            loads.end()


def check(lasts: Sequence[int], version: int, sampled: VersionedSampled, loads: TokenLoads) -> None:
    """Token r of a row is its prompt's last one, plus the version of the weights that sampled it, plus r."""
    for row, last in enumerate(lasts):
        count = int(sampled.mask[row].sum())
        tokens, versions = sampled.response[row, :count].tolist(), sampled.versions[row, :count].tolist()
        assert [(token - last - r) % VOCABULARY for r, token in enumerate(tokens)] == versions
        assert count == LENGTH or tokens[-1] == END
        assert versions[0] >= version, "the oldest token is no older than the dispatch"
        assert all(before <= after for before, after in pairwise(versions))
        assert versions == [[v for at, v in loads.taken if at <= r][-1] for r in range(count)], "what the log says"


rows = st.lists(st.integers(0, 49), min_size=1, max_size=3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(rows, st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=4), st.integers(0, 3))
def test_rows_of_calls_in_one_batch_are_those_of_each_call(
    engine: EngineHandle, calls: list[tuple[list[int], int, int]], wait: int
) -> None:
    role = Role(engine)
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = list[Future[tuple[VersionedSampled, TokenLoads]]]()
        for lasts, version, later in calls:
            futures.append(threads.submit(role.sample, lasts, version))
            time.sleep(later / 1000)
        for version in (1, 2, 3):
            time.sleep(wait / 1000)
            role.arrived.add(version, partial(role.load, version))
        for (lasts, version, _), future in zip(calls, futures, strict=True):
            check(lasts, version, *future.result(60))


def test_calls_share_decode_steps(engine: EngineHandle) -> None:
    """Two calls need as many decode steps as the longer one, if the second joins at once."""
    role, steps = Role(engine), list[int]()
    step = engine.process.step

    def counted(most: int) -> object:
        stepped = step(most)
        steps.append(stepped.steps)
        return stepped

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(engine.process, "step", counted)
        engine.batch._led = True  # nobody leads before both wait
        both = [threads.submit(role.sample, [60], 0) for _ in range(2)]
        begin_when(engine, 2)
        for future in both:
            check([60], 0, *future.result(60))
    assert sum(steps) == LENGTH


def failures(role: Role, calls: Sequence[Sequence[int]], meanwhile: Callable[[], object]) -> list[BaseException | None]:
    role.engine.batch._led = True  # nobody leads before all wait
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(role.sample, lasts, 0) for lasts in calls]
        begin_when(role.engine, len(calls), meanwhile)
        return [future.exception(60) for future in futures]


def test_an_engine_that_dies_fails_every_call_and_the_next_one_has_another() -> None:
    engine = handle(tokens=LENGTH)
    try:
        role = Role(engine)
        raised = failures(role, [[60], [DIE], [70]], int)
        assert [type(error) for error in raised] == [ResourceError] * 3
        assert all("HF954: engine 'vllm' died in 'step'" in str(error) for error in raised)
        check([60], 0, *role.sample([60], 0))
    finally:
        engine.process.close()


def test_a_load_that_raises_fails_every_call() -> None:
    engine = handle(tokens=LENGTH)

    def refuse() -> None:
        raise HfError("HF806", "no such weights")

    try:
        role = Role(engine)
        refused = failures(role, [[60], [70]], partial(role.arrived.add, 1, refuse))
        assert [str(error) for error in refused] == ["HF806: no such weights"] * 2
    finally:
        engine.process.close()


def begin_when(engine: EngineHandle, calls: int, first: Callable[[], object] = int) -> None:
    """Let a batch begin once so many calls wait for it, after something else."""
    while len(engine.batch._joining) < calls:
        time.sleep(0.001)
    first()
    engine.batch._end_lead()
