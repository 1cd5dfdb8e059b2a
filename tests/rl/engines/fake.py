"""What is started with the engine of ``fake_engine``: a process, or a role's handle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from transformers import LlamaConfig

from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.rl.engines import handle as handles
from hfdsl.rl.engines.handle import EngineHandle
from hfdsl.rl.engines.interface import EngineStart
from hfdsl.rl.engines.ranks import EngineRanks
from hfdsl.rl.workers.config import GenerationConfig
from hfdsl.rl.workers.lora import Lora
from tests.rl.engines.fake_engine import (
    DIE,
    DIFFER,
    HANG,
    RAISE,
    VOCABULARY,
    FakeEngine,
    Keeping,
    Narrowing,
    Reading,
    Refusing,
    Secret,
    Sharing,
    Slow,
    Stuck,
    Writing,
    checksum,
)

__all__ = [
    "DIE",
    "DIFFER",
    "HANG",
    "RAISE",
    "VOCABULARY",
    "FakeEngine",
    "Keeping",
    "Narrowing",
    "Reading",
    "Refusing",
    "Secret",
    "Sharing",
    "Slow",
    "Stuck",
    "Writing",
    "checksum",
    "handle",
    "handle_of_installed",
    "installed",
    "start",
]


def start(implementation: type = FakeEngine, cache_bytes: int = 0) -> EngineStart:
    """What a process starts with to be such an engine."""
    return EngineStart(
        engine="fake",
        implementation=f"{implementation.__module__}:{implementation.__name__}",
        config="{}",
        dtype="float32",
        max_length=16,
        cache_bytes=cache_bytes,
        weight_bytes=0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_tokens=3,
        end_tokens=(50,),
    )


@contextmanager
def installed(version: str = "0.32.0", engine: type[FakeEngine] = FakeEngine) -> Iterator[None]:
    """Within this, a version of vLLM is installed, and it is a fake engine."""
    engines = {"vllm": f"{engine.__module__}:{engine.__name__}"}
    with (
        mock.patch.object(handles, "ENGINES", engines),
        mock.patch.object(handles, "installed_version", return_value=version),
    ):
        yield


def handle(version: str = "0.32.0", tokens: int = 3) -> EngineHandle:
    """A role's handle of the fake engine, whose responses have so many tokens at most."""
    with installed(version):
        return handle_of_installed(tokens=tokens)


def handle_of_installed(
    ranks: EngineRanks | None = None,
    weight_peers: AxisGroup | None = None,
    lora: Lora | None = None,
    tokens: int = 3,
) -> EngineHandle:
    """A role's handle of the engine that is installed."""
    ranks, weight_peers = ranks or EngineRanks(), weight_peers or SoleRank()
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    generation = GenerationConfig(tokens, engine="vllm", cache_tokens=13 + tokens, engine_deadline=60)
    shapes = {f"model.0.q_proj.lora_{side}.weight": (2,) for side in "AB"} if lora is not None else {}
    return EngineHandle(
        config,
        {"model.weight": (1,)},
        generation,
        dtype="float32",
        end_tokens=(50,),
        pad_token=0,
        ranks=ranks,
        weight_peers=weight_peers,
        lora=lora,
        adapter_shapes=shapes,
    )
