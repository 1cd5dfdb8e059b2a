"""Weights that arrive in an engine's memory: what it samples with, what is saved, and what digests say are one version.

On a CPU the copy on the host is made when it is waited for. So code that reads it without waiting finds old weights,
and code that lets the engine's memory be overwritten first loses a version.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

import hfdsl as hf
from hfdsl.errors import ResourceError, SyncError
from hfdsl.plan import buckets
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Prompts
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.runtime.digests import Digests, digests
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.held_parts import HeldPart
from tests.nightly import examples
from tests.rl.engines import fake
from tests.rl.engines.syncs import Syncs, random_weights
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES
from tests.rl.workers.test_copies import sent

pytestmark = pytest.mark.usefixtures("forked_engines", "in_buckets")

VLLM = replace(tiny.GENERATION, engine="vllm", cache_tokens=4096)
CONFIG = w.SamplerConfig(tiny.MODEL, VLLM)
PARAMETERS = w.Sampler.state_parameters(CONFIG)["policy"]
FIRST = 5
"""The last token of every prompt."""


@pytest.fixture(scope="module")
def in_buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Weights of a kilobyte arrive where they stay, and others through buffers. Sockets of processes have a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("engines")))
        for name in ("BROADCAST_BYTES", "SEND_BYTES"):
            patch.setattr(buckets, name, 1024)
        yield


@cache
def weights_of(version: int) -> dict[str, torch.Tensor]:
    """The weights of a version of the actor."""
    return random_weights(PARAMETERS, version)


def digests_of(version: int) -> set[tuple[str, int]]:
    return values(digests((name, HeldPart(weight)) for name, weight in weights_of(version).items()))


def values(taken: Digests) -> set[tuple[str, int]]:
    return {(digest.name, digest.value) for digest in taken}


def first_token(weights: Mapping[str, torch.Tensor]) -> int:
    """The token that the fake engine samples first."""
    saved = {name.removeprefix("model."): weight for name, weight in weights.items()}
    return (FIRST + fake.checksum(saved)) % fake.VOCABULARY


def sampler_with(engine: type[fake.FakeEngine] = fake.Sharing, config: w.SamplerConfig = CONFIG) -> Any:
    with fake.installed(engine=engine):
        return w.Sampler(config)


class Rig(Syncs):
    """A sampler with the fake engine, and an actor whose weights are those of numbered versions."""

    def __init__(self, sampler: Any = None) -> None:
        super().__init__(sampler or sampler_with(), PARAMETERS)

    def sync_version(self, version: int, midway: Callable[[], None] | None = None) -> set[tuple[str, int]] | None:
        """Exchange the weights of a version, and return the digests of what has arrived."""
        taken = self.sync(weights_of(version), midway)
        return None if taken is None else values(taken)

    def generate(self) -> int:
        """The first token of a greedy row."""
        ids = torch.tensor([[FIRST]])
        with fake.installed(engine=fake.Sharing):
            rollout = self.rollout(Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{}]))
        return int(rollout.ids.tensor[0, 1])

    def state(self) -> dict[str, torch.Tensor]:
        """A checkpoint."""
        return {name: weight.clone() for name, weight in self.sampler.state().items()}

    def held(self) -> set[tuple[str, int]]:
        """Digests of the weights as a verification after the step takes them."""
        return values(digests(self.sampler.held_weights("policy").items()))

    def host(self) -> set[tuple[str, int]]:
        """Digests of the weights that are on the host now."""
        return values(digests((name, HeldPart(weight)) for name, weight in self.copy.weights.items()))


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(weight, right[name]) for name, weight in left.items())


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A sampler whose engine has version 1, so that the next sync may write its memory."""
    rig = Rig()
    rig.sync_version(1)
    assert not rig.is_direct
    assert rig.generate() == first_token(weights_of(1))
    yield rig
    rig.copy.engine.process.close()


def test_weights_arrive_in_the_memory_of_the_engine(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight is sent to it, and digests are those of its memory; the host has them once somebody waits."""
    calls = list[str]()

    def send(message: Any) -> None:
        calls.append(message[0])
        EngineProcess._send(rig.copy.engine.process, message)

    monkeypatch.setattr(rig.copy.engine.process, "_send", send)
    assert rig.sync_version(2) == digests_of(2)
    assert rig.generate() == first_token(weights_of(2))
    assert rig.sync_version(3) == digests_of(3)
    assert rig.generate() == first_token(weights_of(3))
    first, *others = calls
    assert (first, others) == ("share", ["finish", *["write", "written", "generate", "finish"] * 2])
    assert rig.held() == digests_of(3)
    assert rig.host() == digests_of(2)
    assert same(rig.state(), weights_of(3))
    assert rig.host() == digests_of(3)


def test_digests_are_those_of_what_the_engine_reads(rig: Rig) -> None:
    """An element that changes there is seen by a verification, and in the tokens."""
    rig.sync_version(2)
    rig.sampler.state()
    memory = rig.copy.shared.newest
    assert memory is not None
    next(iter(memory.values())).tensor.view(-1)[3] += 1
    assert rig.held() != digests_of(2)
    assert rig.host() == digests_of(2)
    assert rig.generate() != first_token(weights_of(2))


def test_the_engine_refuses_to_sample_while_weights_arrive(rig: Rig) -> None:
    """Even if it is asked: it has no version from before the first write on."""
    versions = list[Any]()

    def midway() -> None:
        versions.append(dict(rig.copy.engine.process.versions))
        rig.copy.engine.process.versions = {"weights": rig.copy.version}  # as if it had the last one
        rig.copy.engine.process.generate([[FIRST]], None)

    with pytest.raises(ResourceError, match=r"HF954.*the engine has no weights since it let its caller write"):
        rig.sync_version(2, midway)
    assert versions == [{}]
    with pytest.raises(SyncError, match="HF770"):
        rig.generate()


def failing() -> None:
    raise OSError("the transfer failed")


def test_after_a_failed_exchange_nothing_is_used_until_the_next(rig: Rig) -> None:
    rig.sync_version(2)
    process = rig.copy.engine.process
    with pytest.raises(OSError, match="the transfer failed"):
        rig.sync_version(3, failing)
    assert not process.alive  # a late message could reach its memory
    for use in (rig.generate, rig.state):
        with pytest.raises(SyncError, match=r"HF770: the last load of weights failed \(OSError: the transfer failed\)"):
            use()
    assert rig.host() == digests_of(2)  # whole, as it was settled before the first write
    rig.sync_version(4)
    assert not rig.is_direct
    assert (rig.generate(), rig.held()) == (first_token(weights_of(4)), digests_of(4))
    rig.sync_version(5)
    assert rig.is_direct
    assert (rig.generate(), rig.held()) == (first_token(weights_of(5)), digests_of(5))


@pytest.mark.parametrize("when", ["midway", "afterward"])
def test_a_killed_engine_is_started_again_with_the_newest_weights(rig: Rig, when: str) -> None:
    """Although only its own memory had them; that memory is closed before the next engine starts."""
    rig.sync_version(2, rig.kill if when == "midway" else None)
    rig.kill()
    assert rig.host() == digests_of(1)
    mapped = rig.copy.shared._memory
    assert mapped is not None
    started: list[Any] = []

    def start(*arguments: Any) -> EngineProcess:
        started.append(rig.copy.shared._memory)
        return EngineProcess(*arguments)

    with mock.patch("hfdsl.rl.engines.handle.EngineProcess", start):
        assert rig.generate() == first_token(weights_of(2))
    assert started == [None]
    assert (rig.held(), rig.host()) == (digests_of(2), digests_of(2))
    rig.sync_version(3)
    assert rig.is_direct
    assert rig.generate() == first_token(weights_of(3))


def test_the_memory_of_a_dead_engine_is_freed_before_the_next_one_starts(rig: Rig) -> None:
    """No layout that a sync keeps holds it."""
    rig.sync_version(2)
    memory = rig.copy.shared.newest
    assert memory is not None
    storages = [StorageWeakRef(part.tensor.untyped_storage()) for part in memory.values()]
    del memory
    rig.kill()
    rig.generate()
    gc.collect()
    assert all(storage.expired() for storage in storages)


def test_weights_for_a_dead_engine_arrive_on_the_host(rig: Rig) -> None:
    rig.sync_version(2)
    rig.kill()
    assert rig.sync_version(3) == digests_of(3)
    assert not rig.is_direct
    assert (rig.host(), rig.generate()) == (digests_of(3), first_token(weights_of(3)))


def test_a_checkpoint_is_loaded_through_the_host(rig: Rig) -> None:
    rig.sync_version(2)
    rig.sampler.load_state(weights_of(7))
    assert (rig.held(), rig.generate()) == (digests_of(7), first_token(weights_of(7)))
    rig.sync_version(3)
    assert rig.is_direct
    rig.sampler.load_state(weights_of(8))
    rig.sync_version(4)  # the engine still has version 3
    assert not rig.is_direct
    assert (rig.held(), rig.generate()) == (digests_of(4), first_token(weights_of(4)))


def test_an_engine_that_cannot_sleep_ends_and_the_next_one_can(rig: Rig) -> None:
    rig.sync_version(2)
    ended = rig.copy.engine.process
    rig.sampler.offload("weights")
    assert not ended.alive
    assert rig.copy.shared._memory is None
    assert rig.held() == digests_of(2)
    assert rig.generate() == first_token(weights_of(2))
    rig.sync_version(3)
    assert not rig.is_direct
    process = rig.copy.engine.process
    rig.sampler.offload("weights")
    assert rig.generate() == first_token(weights_of(3))
    assert rig.copy.engine.process is process


def test_an_engine_that_keeps_what_it_computed_is_an_error() -> None:
    rig = Rig(sampler_with(fake.Stuck))
    rig.sync_version(1)
    rig.generate()
    rig.sync_version(2)
    with pytest.raises(ResourceError, match=r"HF954(.|\n)*failed in 'write'(.|\n)*the cache is in use"):
        rig.generate()
    assert not rig.copy.engine.process.alive
    assert rig.generate() == first_token(weights_of(2))  # by another engine, which loads them
    rig.sync_version(3)
    with pytest.raises(ResourceError, match=r"HF954(.|\n)*failed in 'write'"):
        rig.sync_version(4)
    with pytest.raises(SyncError, match="HF770"):
        rig.generate()


def offloaded() -> Any:
    token = current_rank.set(RankContext(offloads=True))
    try:
        return sampler_with()
    finally:
        current_rank.reset(token)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: sampler_with(fake.Reading),
        lambda: sampler_with(fake.Secret),
        lambda: sampler_with(fake.Narrowing),
        offloaded,
    ],
    ids=["without places", "that cannot share", "of another dtype", "offloaded"],
)
def test_other_engines_load_from_the_host(sampler: Callable[[], Any]) -> None:
    through_the_host(Rig(sampler()))


def through_the_host(rig: Rig) -> None:
    """Syncs without an engine's memory."""
    for version in (1, 2, 3):
        assert rig.sync_version(version) == digests_of(version)
        assert not rig.is_direct
        assert rig.host() == digests_of(version)
        assert rig.generate() == first_token(weights_of(version))


def test_an_engine_whose_memory_this_process_may_not_open_loads_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = mock.Mock(side_effect=RuntimeError("pidfd_getfd: Operation not permitted"))
    monkeypatch.setattr("hfdsl.rl.engines.process.pickle.loads", loads)
    through_the_host(Rig())
    assert loads.called


def test_samplers_in_flight_and_with_adapters_keep_weights_that_arrive_on_the_host() -> None:
    with fake.installed(engine=fake.Sharing):
        in_flight: Any = w.InFlightSampler(CONFIG)
        adapted: Any = w.Sampler(replace(CONFIG, lora=w.Lora(rank=2)))
        plain: Any = w.Sampler(CONFIG)
    assert [each.copy.engine.start.sleeps for each in (in_flight, adapted, plain)] == [True, True, False]


def test_ranks_that_share_an_engine_load_from_the_host() -> None:
    """Each of its processes has slices, and every rank receives all of the weights."""
    pools = [hf.ResourcePool([size], use_gpu=False) for size in (1, 2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, tiny.ACTOR, pool=pools[0]),
        sampler=hf.place(w.Sampler, CONFIG, pool=pools[1], mesh=hf.Mesh(tp=2)),
    )
    with fake.installed(engine=fake.Sharing), sent.compile(deployment, SIZES).launch("local") as running:
        backend: Any = running._processes.backend
        for _ in range(2):
            running.step(tiny.prompts(ROWS))
        newest = backend.of_workers("sampler", lambda worker: worker.copy.shared.newest)
    assert newest == [None, None]


# -- any order of events


OPERATIONS = ("sync", "sync", "fail", "die midway", "generate", "kill", "offload", "save", "restore", "verify")


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=14))
def test_tokens_checkpoints_and_digests_are_of_one_version_in_any_order(operations: list[str]) -> None:
    """The newest that has arrived whole, or none after a failure."""
    rig = rigs[-1] if rigs and not rigs[-1].copy.engine.start.sleeps else Rig()
    rigs.append(rig)
    rig.sync_version(1)
    assert rig.generate() == first_token(weights_of(1))
    newest: int | None = 1
    saved = 1
    for number, operation in enumerate(operations, start=2):
        if operation in ("sync", "die midway"):
            taken = rig.sync_version(number, rig.kill if operation == "die midway" else None)
            newest = number
            assert taken in (None, digests_of(number))
        elif operation == "fail":
            with pytest.raises(OSError, match="the transfer failed"):
                rig.sync_version(number, failing)
            newest = None
        elif operation == "kill":
            rig.kill()
        elif operation == "offload":
            rig.sampler.offload("weights")
        elif operation == "restore":
            rig.sampler.load_state(weights_of(saved))
            newest = saved
        elif newest is None:
            with pytest.raises(SyncError, match="HF770"):
                (rig.state if operation == "save" else rig.generate)()
        elif operation == "save":
            assert same(rig.state(), weights_of(newest))
            saved = newest
        elif operation == "verify":
            assert rig.held() == digests_of(newest)
        else:
            assert rig.generate() == first_token(weights_of(newest))
    if newest is not None:
        assert (rig.generate(), rig.held()) == (first_token(weights_of(newest)), digests_of(newest))
        assert same(rig.state(), weights_of(newest))


rigs: list[Rig] = []
"""The last one has an engine that the next example may use."""


# -- in a plan


def test_a_run_with_a_sampler_writes_the_memory_of_its_engine() -> None:
    """On the local backend, in steps that are verified as they run; the first one goes through the host."""
    pools = [hf.ResourcePool([1], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, tiny.ACTOR, pool=pools[0]), sampler=hf.place(w.Sampler, CONFIG, pool=pools[1])
    )
    torch.set_num_threads(1)
    with (
        fake.installed(engine=fake.Sharing),
        sent.compile(deployment, SIZES).launch("local") as running,
    ):
        backend: Any = running._processes.backend
        for step in range(3):
            backend.of_workers("actor", learn)
            with running.verifying("policy"):
                rollout = running.step(tiny.prompts(ROWS))
            assert running.verify("policy").compared == (VerifiedSync("policy", "actor", "sampler"),)
            assert backend.of_workers("sampler", lambda worker: worker.copy.shared.newest is not None) == [step > 0]
            [weights] = backend.of_workers("actor", lambda worker: dict(worker.held_weights("policy")))
            base = first_token({name: part.tensor for name, part in weights.items()}) - FIRST
            last = tiny.prompts(ROWS).ids.tensor[:, -1]
            shifts = (rollout.ids.tensor[:, tiny.PROMPT] - last - base) % fake.VOCABULARY
            assert (shifts < 7).all()  # what the fake engine adds for a row's seed


@torch.no_grad()
def learn(actor: w.Actor) -> None:
    for parameter in actor.policy.parameters():
        parameter.mul_(1.25)
