"""Engines in parts: ranks that share one get its rows, and none is left waiting where a part dies or hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DeadlineError, HfError, ResourceError
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout
from hfdsl.rl.engines.handle import EngineHandle, Sampled, Versioned
from hfdsl.rl.engines.ranks import EngineRanks
from tests.rl.engines import fake
from tests.rl.workers import tiny

pytestmark = pytest.mark.usefixtures("forked_engines")

T = TypeVar("T")
FIRST, OTHERS, SECONDS = [[1, 2], [3, 4]], [[5, 6], [7, 8], [9, 10]], 120


class ThreadGroup(AxisGroup):
    """A rank that is a thread beside its peers and, like a process, waits without letting them run."""

    def __init__(self, rank: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.size, self.rank, self.values, self.meeting = len(values), rank, values, barrier

    def all_gather(self, value: T) -> list[T]:
        self.values[self.rank] = value
        self.meeting.wait(SECONDS)
        values = list(self.values)
        self.meeting.wait(SECONDS)
        return values


class Rank:
    """A rank with a handle, and weights with a version."""

    def __init__(self, peers: AxisGroup, *, has_other_rows: bool) -> None:
        ranks = EngineRanks(peers, tuple(range(peers.size)), has_other_rows)
        self.engine, self.asked, self.version = fake.handle_of_installed(ranks, peers), 0, 1

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        self.asked += 1
        return [("model.weight", torch.tensor([10.0]))]

    def sample(self, prompts: Sequence[Sequence[int]], first_row: int, *, greedy: bool) -> Sampled:
        ids = torch.tensor(prompts)
        with in_call(Call(seed=0, step=0, node=0, rank=0, first_row=first_row, row_count=len(prompts))):
            return self.engine.sample(ids, ids >= 0, Versioned(self.version, self.weights), greedy=greedy)


class Ranks:
    """Two ranks that share an engine."""

    def __init__(self, *, has_other_rows: bool = False) -> None:
        values, barrier = [None, None], threading.Barrier(2)
        self.pool, self.has_other_rows = ThreadPoolExecutor(2), has_other_rows
        peers = [ThreadGroup(rank, values, barrier) for rank in range(2)]
        with fake.installed():
            self.ranks = self.each(lambda rank: Rank(peers[rank], has_other_rows=has_other_rows))

    def each(self, body: Callable[[int], T]) -> list[T]:
        return [future.result(SECONDS) for future in self.futures(body)]

    def futures(self, body: Callable[[int], T]) -> list[Future[T]]:
        return [self.pool.submit(body, rank) for rank in range(2)]

    def calls(self, *prompts: Any, greedy: bool = True) -> list[Future[Sampled]]:
        """Both sample: the same prompts, or where they have rows of their own, those of the first and of the second."""
        rows = prompts if self.has_other_rows else (*prompts, *prompts)
        before = len(prompts[0]) if self.has_other_rows else 0
        return self.futures(lambda rank: self.ranks[rank].sample(rows[rank], rank * before, greedy=greedy))

    def sample(self, *prompts: Any, greedy: bool = True) -> list[list[list[int]]]:
        return [call.result(SECONDS).response.tolist() for call in self.calls(*prompts, greedy=greedy)]

    def errors(self, *prompts: Any) -> list[HfError]:
        errors = [call.exception(SECONDS) for call in self.calls(*prompts)]
        assert all(isinstance(error, HfError) for error in errors), errors
        return errors  # type: ignore[return-value]  # as it was asserted

    @property
    def engines(self) -> list[EngineHandle]:
        return [rank.engine for rank in self.ranks]

    def close(self) -> None:
        for engine in self.engines:
            engine.process.close()
        self.pool.shutdown()


@pytest.fixture(scope="module")
def alike() -> Iterator[Ranks]:
    """Two ranks with the same rows, as along tp."""
    ranks = Ranks()
    yield ranks
    ranks.close()


def expected(prompts: Sequence[Sequence[int]], first_row: int = 0, *, greedy: bool = True) -> list[list[int]]:
    """What the engine says that it says; sampled rows are shifted by their seeds."""
    seeds = Call(seed=0, step=0, node=0, rank=0, first_row=first_row, row_count=len(prompts)).row_seeds()
    starts = [prompt[-1] + 10 + (0 if greedy else seed % 7) for prompt, seed in zip(prompts, seeds, strict=True)]
    return [[start, start + 1, start + 2] for start in starts]


def test_ranks_with_the_same_rows_all_get_them(alike: Ranks) -> None:
    for greedy in (True, False):
        assert alike.sample(FIRST, greedy=greedy) == [expected(FIRST, greedy=greedy)] * 2


def test_ranks_with_other_rows_get_their_own() -> None:
    ranks = Ranks(has_other_rows=True)
    for greedy in (True, False):
        rows = [expected(FIRST, greedy=greedy), expected(OTHERS, 2, greedy=greedy)]
        assert ranks.sample(FIRST, OTHERS, greedy=greedy) == rows
    for error in ranks.errors(FIRST, [[5, 6], [7, fake.VOCABULARY]]):
        assert str(error).startswith("HF953: row 3: its prompt has the token 100")
    assert ranks.sample(FIRST, OTHERS) == [expected(FIRST), expected(OTHERS)]
    assert [rank.asked for rank in ranks.ranks] == [1, 1]
    ranks.close()


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (fake.DIE, "died in 'generate', by signal SIGKILL"),
        (fake.DIFFER, "the 2 processes of an engine have sampled different tokens"),
    ],
)
def test_a_part_that_dies_or_fails_ends_all_with_one_error(alike: Ranks, first: int, says: str) -> None:
    """The other process would wait for it longer than the test may take."""
    alike.sample(FIRST)
    counts = [rank.asked for rank in alike.ranks]
    mine, theirs = alike.errors([[first, 1]])
    assert isinstance(mine, ResourceError)
    assert mine.code == "HF954"
    assert says in mine.message
    assert str(mine) == str(theirs)
    assert not any(engine.process.alive for engine in alike.engines)
    assert alike.sample(FIRST) == [expected(FIRST)] * 2
    assert [rank.asked for rank in alike.ranks] == [count + 1 for count in counts]


@pytest.mark.nightly  # a process of its own that hangs is in test_process.py
def test_a_part_that_hangs_ends_all_at_the_deadline(alike: Ranks) -> None:
    alike.sample(FIRST)
    for engine in alike.engines:
        engine.process.deadline = 1.0
    for error in alike.errors([[fake.HANG, 1]]):
        assert isinstance(error, DeadlineError)
        assert error.code == "HF955"
    assert not any(engine.process.alive for engine in alike.engines)
    assert alike.sample(FIRST) == [expected(FIRST)] * 2


def test_a_part_that_died_while_idle_is_started_again_with_the_others(alike: Ranks) -> None:
    alike.sample(FIRST)
    before = [engine.process.pid for engine in alike.engines]
    os.kill(before[1], signal.SIGKILL)
    alike.engines[1].process._process.wait()
    assert alike.sample(FIRST) == [expected(FIRST)] * 2
    assert not {engine.process.pid for engine in alike.engines} & set(before)


def test_ranks_that_gather_weights_together_all_take_part(alike: Ranks) -> None:
    alike.sample(FIRST)
    counts = [rank.asked for rank in alike.ranks]
    alike.engines[0].process.versions["weights"] = 99
    alike.sample(FIRST)
    assert [rank.asked for rank in alike.ranks] == [count + 1 for count in counts]


# -- the mesh of a role, on the local backend


@hf.dataflow
def sampled(prompts: Prompts, sampler: w.Sampler) -> Rollout:
    return sampler.generate(prompts)


def rows(mesh: hf.Mesh, engine_tp: int | None = None) -> torch.Tensor:
    generation = w.GenerationConfig(tiny.RESPONSE, engine="vllm", engine_deadline=60, engine_tp=engine_tp)
    config = w.SamplerConfig(tiny.MODEL, generation)
    place = hf.place(w.Sampler, config, pool=hf.ResourcePool([mesh.world_size], use_gpu=False), mesh=mesh)
    sizes: dict[type[hf.Dim], int] = {B: 4, P: tiny.PROMPT, R: tiny.RESPONSE}
    with (
        fake.installed(),
        sampled.compile(hf.Deployment(sampler=place), sizes).launch("local") as running,
    ):
        ids: torch.Tensor = running.step(tiny.prompts(4)).ids.tensor
        return ids


@pytest.fixture(scope="module")
def whole() -> torch.Tensor:
    """The rows of one engine that is whole."""
    return rows(hf.Mesh())


@pytest.mark.nightly_besides("Mesh(pp=1 dp=2 tp=2)")  # whose ranks have the same rows and other ones
@pytest.mark.parametrize(
    ("mesh", "engine_tp"),
    [
        (hf.Mesh(dp=2, tp=2, order=("tp", "dp", "pp")), None),
        (hf.Mesh(tp=2, gen_tp=1), None),
        (hf.Mesh(dp=2), 2),
    ],
    ids=str,
)
def test_rows_do_not_depend_on_the_mesh(whole: torch.Tensor, mesh: hf.Mesh, engine_tp: int | None) -> None:
    """Ranks along dp have different rows, and those along tp the same, which are collected once."""
    assert torch.equal(rows(mesh, engine_tp), whole)


@pytest.mark.parametrize(
    ("mesh", "engine_tp", "says"),
    [
        (hf.Mesh(dp=2), 4, "engine_tp = 4 does not divide the 2 ranks of dp"),
        (hf.Mesh(tp=2), 1, "leave out engine_tp, or set gen_tp = 1"),
    ],
)
def test_meshes_without_such_engines_are_refused(mesh: hf.Mesh, engine_tp: int | None, says: str) -> None:
    with pytest.raises(HfError, match=rf"HF957(.|\n)*{says}"):
        rows(mesh, engine_tp)
