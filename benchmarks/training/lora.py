"""One way to learn at a time: tokens per second of updates, and memory, of a whole model or of a LoRA adapter.

    python -m benchmarks.training.lora --whole
    python -m benchmarks.training.lora --rank 16
    python -m benchmarks.training.lora --rank 16 --hidden 4096 --inner 11008 --layers 32

One process each, since the peak of the memory is that of a process. A model that learns as a whole has float32
parameters, and one with an adapter bfloat16 ones, each with autocast to bfloat16. Weights are random and drawn on the
GPU; updates are supervised, on rows without padding, with recomputed activations.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.training.models import llama
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.batches import Sequences
from hfdsl.rl.models.adapters import add_adapters
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.learning import Learner
from hfdsl.rl.models.updates import sft_update
from hfdsl.rl.workers.config import (
    ActorConfig,
    BatchingConfig,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from hfdsl.rl.workers.linear_layers import adapter_parameters
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.state_bytes import weight_count

GIB = 2**30
LEARNED_BYTES = 16
"""The bytes of a float32 parameter that learns: itself, its gradient, and the two moments of AdamW."""


def config(args: argparse.Namespace) -> ActorConfig:
    """A Llama whose whole weights learn, or an adapter."""
    model = llama(args.hidden, args.layers, args.vocabulary, args.tokens, args.inner)
    optimizer = OptimizerConfig(learning_rate=1e-5)
    return ActorConfig(
        model=ModelConfig(config=model, dtype="float32" if args.whole else "bfloat16"),
        generation=GenerationConfig(args.tokens // 2),
        training=TrainingConfig(optimizer, autocast="bfloat16", checkpointing=True),
        batching=BatchingConfig(tokens=args.micro_batch),
        lora=None if args.whole else Lora(rank=args.rank, alpha=2 * args.rank),
    )


def built(actor: ActorConfig) -> Learner:
    """The learner of an actor, with weights that are drawn on its device."""
    values = dict(actor.model.config or {})
    settings = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device(device()):
        model = AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, actor.model.dtype))
    if actor.lora is not None:
        add_adapters(model, actor.lora, 0, actor.training.autocast)
    return Learner(Policy(model.eval(), 1.0, SoleRank()), model, actor.training, SoleRank())


def predicted_bytes(actor: ActorConfig) -> int:
    """The bytes of weights, gradients and moments, by the configuration alone."""
    weights = weight_count(actor.model) or 0
    if actor.lora is None:
        return LEARNED_BYTES * weights
    return 2 * weights + LEARNED_BYTES * (adapter_parameters(actor.model, actor.lora) or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="learn all weights")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=0, help="features of the MLP (default: 11/4 of --hidden)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024, help="of a row; half of them are its response")
    parser.add_argument("--micro-batch", type=int, default=32_768, help="tokens")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    actor = config(args)
    learner = built(actor)
    ids = torch.randint(2, args.vocabulary, (args.rows, args.tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids).bool()
    sequences = Sequences(ids=ids, mask=mask, response_mask=mask[:, args.tokens // 2 :])
    seconds = []
    for _ in range(args.times + 1):  # the first allocates
        start = time.perf_counter()
        sft_update(learner, sequences, actor, SoleRank())
        if device().type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    mean = sum(seconds[1:]) / args.times
    parameters = sum(parameter.numel() for parameter in learner.parameters)
    held, peak = (
        (torch.cuda.memory_allocated() / GIB, torch.cuda.max_memory_allocated() / GIB)
        if device().type == "cuda"
        else (0.0, 0.0)
    )
    print(
        f"| {'whole' if args.whole else f'rank {args.rank}'}, hidden {args.hidden}, {args.layers} layers "
        f"| {(weight_count(actor.model) or 0) / 1e6:,.0f} | {parameters / 1e6:,.1f} "
        f"| {ids.numel() / mean:,.0f} | {mean:.2f} | {predicted_bytes(actor) / GIB:.2f} | {held:.2f} | {peak:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
