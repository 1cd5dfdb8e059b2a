"""Weights that an engine reads in its caller's memory: whatever happens to them or to it, it has those of the caller.

The caller sends nothing where its weights have not moved, and the engine keeps the copies that it made of them, so what
would go wrong is a load that reads weights from where they were, or writes them to where they no longer belong.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hfdsl.rl.engines.interface import Lent
from hfdsl.rl.engines.places import PlaceWriter, WeightPlace
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.rl.models.engine_weights import EngineWeights
from hfdsl.rl.models.forward import Policy
from tests.nightly import examples
from tests.rl.engines.fake import Writing, start

pytestmark = pytest.mark.usefixtures("forked_engines", "lends_host_memory")

STARTED = {"a": [[1.0, 2.0], [3.0, 4.0]], "b": [[5.0, 6.0], [7.0, 8.0]], "rows": [9.0, 10.0, 11.0, 12.0]}


@pytest.fixture(scope="module")
def lends_host_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
        yield


class Model(nn.Module):
    """What ``EngineWeights`` reads of a policy, besides its parameters."""

    export_dtype: torch.dtype | None = None
    writes = 0


class Trainer:
    """A policy of three weights, and its engine."""

    def __init__(self) -> None:
        self.policy = Model()
        for name, values in STARTED.items():
            self.policy.register_parameter(name, nn.Parameter(torch.tensor(values), requires_grad=False))
        self.weights = EngineWeights(cast("Policy", self.policy), apart=False)
        self.engine = EngineProcess(start(Writing), deadline=60)
        self.version = 0

    def parameter(self, name: str) -> torch.Tensor:
        return self.policy.get_parameter(name)

    def load(self, *, lends: bool = True) -> None:
        self.version += 1
        weights, _ = self.weights.versions()
        place = weights.place() if lends and weights.place is not None else None
        self.engine.load(weights.weights(), self.version, place=place)

    def check(self) -> None:
        """The engine has rounded the caller's values; of ``rows`` it has two, unless there are no others."""
        ours = {name: self.parameter(name).float() for name in STARTED}
        ours["rows"] = ours["rows"] if len(ours["rows"]) == 2 else ours["rows"][1:3]
        assert self.engine._call("parameters") == {name: values.tolist() for name, values in ours.items()}


def updated(trainer: Trainer) -> None:
    for name in STARTED:
        trainer.parameter(name).add_(1)


def moved(trainer: Trainer) -> None:
    trainer.parameter("a").data = trainer.parameter("a").data.clone()


def of_another_dtype(trainer: Trainer) -> None:
    """The same memory, and the next time another."""
    weight = trainer.parameter("a")
    weight.data = weight.data.view(torch.int32) if weight.dtype is torch.float32 else weight.data.float()


def transposed(trainer: Trainer) -> None:
    """The same memory with the same shape, read by columns."""
    trainer.parameter("b").data = trainer.parameter("b").data.t()


def cut(trainer: Trainer) -> None:
    """The same memory, of which the engine has had the rows 1 and 2, and now has 0 and 1."""
    trainer.parameter("rows").data = trainer.parameter("rows").data[:2]


def exchanged(trainer: Trainer) -> None:
    """The same memory, under each other's names."""
    a, b = trainer.parameter("a"), trainer.parameter("b")
    a.data, b.data = b.data, a.data


def released(trainer: Trainer) -> None:
    trainer.engine.release()


def copied(trainer: Trainer) -> None:
    trainer.load(lends=False)


def slept(trainer: Trainer) -> None:
    trainer.engine.sleep(keep_weights=False)
    trainer.engine.wake("weights")
    trainer.engine.wake("cache")


def with_an_adapter(trainer: Trainer) -> None:
    trainer.engine.load([("adapter", torch.ones(1))], trainer.version, "adapter")


def with_other_parameters(trainer: Trainer) -> None:
    trainer.engine._call("replace_parameters")


def restarted(trainer: Trainer) -> None:
    trainer.engine.close()
    trainer.engine = EngineProcess(start(Writing), deadline=60)


EVENTS: tuple[Callable[[Trainer], None], ...] = (
    updated,
    moved,
    of_another_dtype,
    transposed,
    cut,
    exchanged,
    released,
    copied,
    slept,
    with_an_adapter,
    with_other_parameters,
    restarted,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=8))
def test_an_engine_has_the_weights_of_its_caller_after_every_load(events: list[Callable[[Trainer], None]]) -> None:
    trainer = Trainer()
    for event in (updated, *events):
        for _ in range(2):  # the second one finds all where it was
            trainer.load()
            trainer.check()
            updated(trainer)
        event(trainer)
    trainer.load()
    trainer.check()
    trainer.engine.close()


@pytest.mark.parametrize("event", EVENTS)
def test_an_engine_has_the_weights_of_its_caller_after(event: Callable[[Trainer], None]) -> None:
    trainer = Trainer()
    for _ in range(3):
        trainer.load()
        updated(trainer)
    event(trainer)
    updated(trainer)
    trainer.load()
    trainer.check()
    trainer.engine.close()


def test_an_engine_maps_no_memory_of_its_caller_after_a_release() -> None:
    trainer = Trainer()

    def shared() -> int:
        return Path(f"/proc/{trainer.engine.pid}/maps").read_text("utf-8").count("/dev/shm/torch_")

    trainer.load()
    trainer.load()
    assert shared() == len(STARTED)
    moved(trainer)
    trainer.load()
    assert shared() == len(STARTED)
    trainer.engine.release()
    assert shared() == 0
    trainer.load()
    trainer.check()
    trainer.engine.close()


class Counted(dict[str, torch.Tensor]):
    """Weights that count how often they are listed."""

    listed = 0

    def items(self) -> object:  # type: ignore[override]
        self.listed += 1
        return super().items()


def test_the_copies_of_lent_weights_are_worked_out_once_and_not_kept_for_longer() -> None:
    writer, source = PlaceWriter({"a": WeightPlace(torch.zeros(2))}), torch.tensor([1.0, 2.0])
    weights = Counted({"a": source})
    lent, of_source = Lent(weights), weakref.ref(source)
    for step in range(3):
        source.fill_(step)
        writer.write([lent])
        assert writer.places["a"].target.tolist() == [step, step]
    assert weights.listed == 1
    del lent, weights, source
    gc.collect()
    assert of_source() is None


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c"), ("a", "b", "b")])
def test_weights_that_are_not_those_of_the_places_are_refused(names: tuple[str, ...]) -> None:
    writer = PlaceWriter({name: WeightPlace(torch.zeros(1)) for name in "ab"})
    with pytest.raises((KeyError, ValueError)):
        writer.write([[(name, torch.ones(1)) for name in names]])
    with pytest.raises((KeyError, ValueError)):
        writer.write([[(name, torch.ones(1))] for name in names])
    lent = Lent({name: torch.ones(1) for name in names if name != "b"})
    for _ in range(2):
        with pytest.raises((KeyError, ValueError)):
            writer.write([lent])
