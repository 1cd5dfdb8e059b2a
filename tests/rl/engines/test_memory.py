"""What an actor frees before the engine beside it takes memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from hfdsl.rl import workers as w
from hfdsl.rl.engines.handle import EngineHandle, Sampled
from hfdsl.rl.models import policies
from hfdsl.rl.models.engine_weights import EngineWeights
from hfdsl.rl.models.policies import rollout
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, numbers

CUDA = torch.device("cuda")


def test_gradients_and_the_cache_are_freed_before_the_engine_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, events = w.Actor(tiny.ACTOR), list[str]()

    def sample(ids: torch.Tensor, mask: torch.Tensor, *args: Any, **kwargs: Any) -> Sampled:
        events.append("sample")
        assert all(parameter.grad is None for parameter in actor.policy.parameters())
        response = torch.full((len(ids), tiny.RESPONSE), tiny.PAD)
        return Sampled(response, torch.zeros_like(response).bool(), torch.zeros(response.shape))

    engine = mock.Mock(spec=EngineHandle)
    engine.start, engine.sample = mock.Mock(adapter=None), sample
    engine.sleep = lambda: events.append("sleep")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("empty cache"))
    sampling = replace(actor.sampling, external=engine, engine_weights=EngineWeights(actor.policy, apart=False))
    actor.imitate(tiny.demonstrations(ROWS))
    assert any(parameter.grad is not None for parameter in actor.policy.parameters())

    # The device is a GPU while memory is freed alone: everything else stays on the CPU.
    free = policies._free_for_engine

    def on_a_gpu(policy: Any) -> None:
        with mock.patch.object(policies, "device", return_value=CUDA):
            free(policy)

    monkeypatch.setattr(policies, "_free_for_engine", on_a_gpu)
    rollout(actor.policy, tiny.prompts(ROWS), sampling, greedy=True)
    assert events == ["empty cache", "sample", "sleep"]


def test_an_update_after_its_gradients_were_freed_is_the_same() -> None:
    freed, untouched = w.Actor(tiny.ACTOR), w.Actor(tiny.ACTOR)
    for step in range(3):
        policies._free_for_engine(freed.policy)
        ours, theirs = (numbers(role.imitate(tiny.demonstrations(ROWS, step))) for role in (freed, untouched))
        assert ours == theirs


@pytest.mark.parametrize(
    "change", [torch.clone, torch.Tensor.double, lambda weight: weight[:1], lambda weight: weight.t().contiguous().t()]
)
def test_weights_have_another_place_where_one_has_other_memory_or_reads_it_otherwise(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    actor = w.Actor(tiny.ACTOR)
    weights = EngineWeights(actor.policy, apart=False)

    def place() -> object:
        versioned = weights.versions()[0]
        assert versioned.place is not None
        return versioned.place()

    before = place()
    actor.imitate(tiny.demonstrations(ROWS))
    assert place() == before
    embedding = next(iter(actor.policy.parameters()))
    embedding.data = change(embedding.data)
    assert place() != before
