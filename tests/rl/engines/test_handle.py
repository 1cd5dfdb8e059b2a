"""A role's engine: which version of the weights it has, what it refuses, and what it gives back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2MoeConfig

from hfdsl.errors import HfWarning, ResourceError, WiringError
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.engines.handle import EngineHandle, Sampled, Versioned
from hfdsl.rl.engines.ranks import EngineRanks
from hfdsl.rl.workers.config import GenerationConfig
from hfdsl.rl.workers.lora import Lora
from tests.rl.engines import fake

pytestmark = pytest.mark.usefixtures("forked_engines")


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineHandle]:
    engine = fake.handle()
    yield engine
    engine.process.close()


class Policy:
    """Weights with a version, which counts how often they are asked for."""

    def __init__(self) -> None:
        self.version, self.weight, self.asked = 1, 10.0, 0

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        self.asked += 1
        return [("model.weight", torch.tensor([self.weight]))]

    def sample(self, engine: EngineHandle, *prompts: list[int], greedy: bool = True) -> Sampled:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
        with in_call(Call(seed=0, step=0, node=0, rank=0, row_count=len(prompts))):
            return engine.sample(ids, mask, Versioned(self.version, self.weights), greedy=greedy)


@pytest.fixture
def policy(engine: EngineHandle) -> Policy:
    policy = Policy()
    policy.version = engine.process.versions.get("weights", 0) + 1
    return policy


def test_weights_go_to_the_engine_once_a_version(engine: EngineHandle, policy: Policy) -> None:
    assert policy.sample(engine, [1, 2]).response.tolist() == [[12, 13, 14]]
    assert policy.sample(engine, [1, 2]).response.tolist() == [[12, 13, 14]]
    assert policy.asked == 1
    policy.version, policy.weight = policy.version + 1, 20.0
    assert policy.sample(engine, [1, 2]).response.tolist() == [[22, 23, 24]]
    assert policy.asked == 2


def test_an_adapter_goes_to_the_engine_alone_and_after_all_weights() -> None:
    """The fake engine adds what it has of the weights and of the matrix that it got last."""
    with fake.installed():
        engine = fake.handle_of_installed(lora=Lora(rank=2))
    ids, sent = torch.ones(1, 1, dtype=torch.int64), list[str]()

    def first(base: int, adapter: int, matrix: float = 1.0) -> int:
        def weights() -> list[tuple[str, torch.Tensor]]:
            sent.append("weights")
            return [("model.weight", torch.tensor([10.0]))]

        def matrices() -> list[tuple[str, torch.Tensor]]:
            sent.append("adapter")
            return [(f"model.0.q_proj.lora_{side}.weight", torch.full((2,), matrix)) for side in "AB"]

        sampled = engine.sample(ids, ids > 0, Versioned(base, weights), Versioned(adapter, matrices), greedy=True)
        return int(sampled.response[0, 0])

    assert (first(1, 1), sent) == (13, ["weights", "adapter"])
    assert (first(1, 1), first(1, 2, 3.0), sent) == (13, 17, ["weights", "adapter", "adapter"])
    sent.clear()
    assert (first(2, 2, 4.0), sent) == (19, ["weights", "adapter"])
    os.kill(engine.process.pid, signal.SIGKILL)
    engine.process._process.wait()
    sent.clear()
    assert (first(2, 2, 4.0), sent) == (19, ["weights", "adapter"])
    engine.process.close()


def test_rows_of_many_lengths_come_back_padded(engine: EngineHandle, policy: Policy) -> None:
    sampled = policy.sample(engine, [5, 39], [40], [1, 2, 38])
    assert sampled.response.tolist() == [[49, 50, 0], [50, 0, 0], [48, 49, 50]]
    assert sampled.mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert sampled.log_probs.tolist() == [[-49, -50, 0], [-50, 0, 0], [-48, -49, -50]]


def test_rows_are_sampled_with_the_seeds_of_the_call(engine: EngineHandle, policy: Policy) -> None:
    with in_call(Call(seed=0, step=0, node=0, rank=0, row_count=2)) as _:
        seeds = Call(seed=0, step=0, node=0, rank=0, row_count=2).row_seeds()
    sampled = policy.sample(engine, [1], [1], greedy=False)
    assert sampled.response[:, 0].tolist() == [11 + seed % 7 for seed in seeds]


def test_a_sleeping_engine_wakes_when_it_is_called(engine: EngineHandle, policy: Policy) -> None:
    policy.sample(engine, [1])
    engine.sleep()
    engine.sleep()
    assert policy.sample(engine, [1]).response.tolist() == [[11, 12, 13]]
    engine.sleep()
    policy.version, policy.weight = policy.version + 1, 20.0
    assert policy.sample(engine, [1]).response.tolist() == [[21, 22, 23]]


def test_an_engine_reads_lent_weights_again_after_it_slept(
    engine: EngineHandle, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not keep them, and what it has after it woke is no weight; where they are not lent, it keeps them."""
    monkeypatch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
    weight, ids = torch.tensor([10.0]), torch.ones(1, 1, dtype=torch.int64)
    for step, stay in enumerate((True, True, False)):
        weights = {"model.weight": weight}
        versioned = Versioned(policy.version + step, weights.items, object if stay else None)
        for _ in range(2):
            sampled = engine.sample(ids, ids > 0, versioned, greedy=True)
            assert sampled.response[0, 0] == 1 + weight
            engine.sleep()
            assert engine.process.versions == ({} if stay else {"weights": versioned.version})
        weight += 1


def test_an_engine_with_an_adapter_keeps_both_while_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.rl.engines.process.LENT_FROM", {"cpu"})
    with fake.installed():
        engine = fake.handle_of_installed(lora=Lora(rank=2))
    ids = torch.ones(1, 1, dtype=torch.int64)
    base = Versioned(1, lambda: [("model.weight", torch.tensor([10.0]))], object)
    matrices = [(f"model.0.q_proj.lora_{side}.weight", torch.ones(2)) for side in "AB"]
    for _ in range(2):
        sampled = engine.sample(ids, ids > 0, base, Versioned(1, lambda: matrices), greedy=True)
        assert sampled.response[0, 0] == 13
        engine.sleep()
        assert engine.process.versions == {"weights": 1, "adapter": 1}
    engine.process.close()


def test_a_dead_engine_is_started_again_with_the_weights(engine: EngineHandle, policy: Policy) -> None:
    policy.sample(engine, [1])
    os.kill(engine.process.pid, signal.SIGKILL)
    engine.process._process.wait()
    assert policy.sample(engine, [1]).response.tolist() == [[11, 12, 13]]
    assert policy.asked == 2
    with pytest.raises(ResourceError, match="HF954"):
        policy.sample(engine, [fake.DIE])
    assert policy.sample(engine, [1]).response.tolist() == [[11, 12, 13]]
    assert policy.asked == 3


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([], "was not given the weight 'weight'"),
        ([("model.weight", torch.ones(2))], r"of shape \(1,\), and got one of \(2,\)"),
        ([("model.weight", torch.ones(1)), ("model.other", torch.ones(1))], "has no weight 'other' in its model"),
    ],
)
def test_weights_of_another_model_are_refused(
    engine: EngineHandle, policy: Policy, weights: list[tuple[str, torch.Tensor]], says: str
) -> None:
    ids = torch.ones(1, 1, dtype=torch.int64)
    with pytest.raises(WiringError, match=f"HF956.*{says}"):
        engine.sample(ids, ids > 0, Versioned(policy.version, lambda: weights), greedy=True)
    assert policy.sample(engine, [1]).response.tolist() == [[11, 12, 13]]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (list(range(1, 15)), "its prompt has 14 tokens, and the engine takes 1 to 13: 16 .*less 3"),
        ([], "its prompt has 0 tokens"),
        ([3, fake.VOCABULARY], "the token 100, and the engine's model 100 tokens"),
        ([-1, 3], "the token -1"),
    ],
)
def test_a_prompt_that_cannot_be_sampled_is_named(
    engine: EngineHandle, policy: Policy, prompt: list[int], says: str
) -> None:
    with pytest.raises(Exception, match=f"HF953: row 1: .*{says}"):
        policy.sample(engine, [1], prompt)
    assert policy.asked == 0


def test_nothing_is_left_of_a_handle() -> None:
    engine = fake.handle()
    process = engine.process.pid
    del engine
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_versions_that_were_not_tried() -> None:
    with pytest.warns(HfWarning, match=r"HF950: vLLM 0.99.0 is untested"):
        fake.handle("0.99.0").process.close()
    with pytest.raises(ResourceError, match=r"HF950: vLLM 0.9.0 is untested"):
        fake.handle("0.9.0")


@pytest.mark.parametrize("kind", [MixtralConfig, Qwen2MoeConfig])
def test_a_mixture_of_experts_is_refused(kind: type[Any]) -> None:
    """vLLM may give experts wrong weights when they are replaced, which would show in log-probs alone."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind(num_hidden_layers=1))
    shapes = {f"model.{name}": tuple(weight.shape) for name, weight in model.state_dict().items()}
    generation = GenerationConfig(3, engine="vllm")
    with fake.installed(), pytest.raises(ResourceError, match=r"HF951.*'model.layers.0.mlp.experts"):
        EngineHandle(
            model.config,
            shapes,
            generation,
            dtype="float32",
            end_tokens=(50,),
            pad_token=0,
            ranks=EngineRanks(),
            weight_peers=SoleRank(),
        )
