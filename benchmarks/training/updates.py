r"""Updates of a policy: tokens per second, the share of the peak that 6N operations a token are, and peak memory.

    python -m benchmarks.training.updates
    python -m benchmarks.training.updates --hidden 2048 --layers 24 --rows 128 --tokens 512 --autocast bfloat16 \
        --checkpointing --batch 32768 --packing --compile

A Llama with random weights; one process for each setting, since each keeps its memory. Prompts have 32 tokens, and the
lengths of responses are spread evenly from ``--shortest`` to ``--tokens``. Only real tokens count. The update is that
of PPO's clipped loss, with the entropy as a metric.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.training.models import llama
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.batches import Experience
from hfdsl.rl.losses import Clip
from hfdsl.rl.models.device import device
from hfdsl.rl.models.learning import Learner
from hfdsl.rl.models.policies import policy
from hfdsl.rl.models.scoring import log_probs
from hfdsl.rl.models.updates import policy_update
from hfdsl.rl.workers.config import (
    ActorConfig,
    BatchingConfig,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)

PROMPT = 32


def experience(args: argparse.Namespace) -> Experience:
    """Random tokens and advantages."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.linspace(min(args.shortest, args.tokens), args.tokens, args.rows).round()
    response = torch.arange(args.tokens) < lengths[torch.randperm(args.rows, generator=draw), None]
    mask = torch.cat([torch.ones(args.rows, PROMPT, dtype=torch.bool), response], 1)
    ids = torch.randint(2, args.vocabulary, mask.shape, generator=draw) * mask
    advantage = torch.randn(args.rows, 1, generator=draw) * response
    return Experience(
        ids=ids, mask=mask, response_mask=response, log_probs=torch.zeros_like(advantage), advantage=advantage
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="update")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--shortest", type=int, default=1_000_000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--batch", type=int, default=16_384, help="tokens of a micro-batch")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--autocast", choices=("bfloat16",))
    for flag in ("packing", "compile", "checkpointing", "master-weights"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s of the GPU in bfloat16")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    model = llama(args.hidden, args.layers, args.vocabulary, PROMPT + args.tokens)
    training = TrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-6),
        autocast=args.autocast,
        checkpointing=args.checkpointing,
        master_weights=args.master_weights,
    )
    config = ActorConfig(
        ModelConfig(config=model, dtype=args.dtype, compile=args.compile),
        GenerationConfig(args.tokens),
        training,
        BatchingConfig(tokens=args.batch, packing=args.packing),
    )
    module = policy(config.model, 1.0, SoleRank(), packing=args.packing)
    learner, batch = Learner(module, module.model, training, SoleRank()), experience(args)
    seconds: dict[str, list[float]] = {"log-probs": [], "update": []}
    for turn in range(-1, args.times):
        for name, run in (
            ("log-probs", lambda: log_probs(module, batch, config.batching, args.autocast)),
            ("update", lambda: policy_update(learner, batch, Clip(0.2), config, SoleRank())),
        ):
            start = time.perf_counter()
            run()
            if device().type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:  # what the first one compiles is not counted
                seconds[name].append(time.perf_counter() - start)
    tokens, size = int(batch.mask.tensor.sum()), sum(weight.numel() for weight in module.parameters())
    cells = [args.name, f"{size / 1e9:.2f}B", f"{tokens:,}", f"{100 * tokens / batch.mask.tensor.numel():.0f} %"]
    for name, operations in (("log-probs", 2), ("update", 6)):
        rate = tokens / statistics.median(seconds[name])
        cells += [f"{rate:,.0f}", f"{100 * operations * size * rate / (args.peak * 1e12):.1f} %"]
    peak = torch.cuda.max_memory_allocated() / 2**30 if device().type == "cuda" else 0.0
    print("| " + " | ".join([*cells, f"{peak:.1f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
