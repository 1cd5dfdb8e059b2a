"""An engine in a launch: its errors name the role and the field, and it ends with the launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, Prompts, Rollout
from hfdsl.rl.engines import handle
from hfdsl.rl.engines.process import EngineProcess
from tests.rl.engines import fake
from tests.rl.workers import tiny

pytestmark = pytest.mark.usefixtures("forked_engines")

LLAMA = {**tiny.LLAMA, "vocab_size": fake.VOCABULARY, "max_position_embeddings": 32}


@hf.dataflow
def generating(prompts: Prompts, actor: w.Actor) -> Rollout:
    return actor.generate(prompts)


def launched(width: int, first: int, **generation: Any) -> None:
    """One step with two prompts of this width, of which the second begins with this token."""
    sampling = w.GenerationConfig(3, engine="vllm", **{"cache_tokens": 7, "engine_deadline": 60.0, **generation})
    config = w.ActorConfig(w.ModelConfig(config=LLAMA), sampling)
    place = hf.place(w.Actor, config, pool=hf.ResourcePool([1], use_gpu=False))
    plan = generating.compile(hf.Deployment(actor=place), dims={B: 2})  # with a width, the check would find "too long"
    ids = torch.full((2, width), 5)
    ids[1, 0] = first
    with plan.launch("local") as running:
        running.step(Prompts(ids=ids, mask=torch.ones(2, width, dtype=torch.bool), task=[{}, {}]))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes of the engines that a test starts."""
    processes: list[Any] = []

    class Noted(EngineProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            processes.append(self._process)  # not the engine itself, which would then live on

    monkeypatch.setattr(handle, "EngineProcess", Noted)
    with fake.installed():
        yield processes


def test_an_engine_ends_with_its_launch(started: list[Any]) -> None:
    launched(4, 5)
    [process] = started
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("width", "first", "says"),
    [
        (4, fake.DIE, "HF954: 'actor.generate' on rank 0 .*died in 'generate', by signal SIGKILL"),
        (4, fake.RAISE, "HF954: 'actor.generate' on rank 0 .*no such token"),
        (6, 5, "HF953: 'actor.generate' on rank 0 .*row 0: .*cache_tokens"),
        (4, fake.VOCABULARY, "HF953: 'actor.generate' on rank 0 .*row 1: .*tokenizer"),
    ],
    ids=["dies", "fails", "too long", "no such token"],
)
def test_an_error_names_the_role_and_the_cause(started: list[Any], width: int, first: int, says: str) -> None:
    with pytest.raises(hf.HfError, match=f"(?s){says}"):
        launched(width, first)


def test_a_version_that_is_too_old_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "installed_version", lambda: "0.20")
    with pytest.raises(hf.HfError, match=r"HF950: 'actor.__init__ .*vLLM 0.20 is untested"):
        launched(4, 5)
