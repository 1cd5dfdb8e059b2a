"""Decoding responses of unlike lengths, with and without the rows that have ended; on a GPU also what is kept.

    python -m benchmarks.training.decoding
    python -m benchmarks.training.decoding --hidden 1024 --layers 8 --rows 512 --tokens 240 --autocast bfloat16

Lengths are spread evenly from 1 to the longest. Both ways take turns in one process, on the same draws.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl.models import captured_generation, generation
from hfdsl.rl.models.device import autocast, device
from hfdsl.rl.models.policies import policy
from hfdsl.rl.workers.config import GenerationConfig, ModelConfig

VOCABULARY, PAD, PROMPT = 32, 0, 16
END = VOCABULARY - 1


def ragged(rows: int, longest: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prompts, and draws with which responses end at their lengths: by the last token of the vocabulary."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, END, (rows, PROMPT), generator=draw)
    lengths = torch.linspace(1, longest, rows).round()[torch.randperm(rows, generator=draw), None]
    numbers = torch.rand(rows, longest, generator=draw) * 0.8
    numbers = torch.where(torch.arange(longest) == lengths - 1, 1 - 2.0**-24, numbers)
    return ids.to(device()), torch.ones_like(ids).bool().to(device()), numbers.to(device())


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds, with a wait for the GPU."""
    start = time.perf_counter()
    run()
    if device().type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="of the longest response")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--autocast", choices=("bfloat16", "float16"))
    parser.add_argument("--engines", nargs="+", choices=("plain", "captured"), default=["plain", "captured"])
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    heads = {"num_attention_heads": args.hidden // 64, "num_key_value_heads": args.hidden // 64}
    sizes = {"hidden_size": args.hidden, "intermediate_size": args.hidden * 11 // 4, "num_hidden_layers": args.layers}
    others = {"max_position_embeddings": PROMPT + args.tokens, "pad_token_id": PAD, "bos_token_id": None}
    llama = {"model_type": "llama", "vocab_size": VOCABULARY, "eos_token_id": END, **heads, **sizes, **others}
    model, config = policy(ModelConfig(config=llama), 1.0, SoleRank()), GenerationConfig(args.tokens)
    prompts = ragged(args.rows, args.tokens)
    steps = captured_generation.CapturedGenerator(model, config, [END], PAD, args.autocast)
    usual = generation.COMPACTION_SHARE, captured_generation.MIN_ROWS

    def plain() -> Any:
        with autocast(args.autocast, device()):
            return generation.generate(model, *prompts, config, [END], PAD)

    engines: dict[str, Callable[[], Any]] = {"plain": plain, "captured": lambda: steps(*prompts)}
    real = float(plain()[1].float().mean())
    size = sum(weight.numel() for weight in model.parameters()) / 1e6
    print(f"{size:.1f}M parameters, {args.rows} rows, {100 * real:.0f} % of {args.tokens} tokens, {device()}\n")
    print("| | all rows, ms | best | without those that have ended, ms | best | ratio |\n|---|" + "---:|" * 5)
    for name in args.engines:
        times_of: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(-1, args.times):
            for leave, times in times_of.items():
                generation.COMPACTION_SHARE, captured_generation.MIN_ROWS = usual if leave else (0.0, args.rows)
                took = timed(engines[name])
                if turn >= 0:  # what the first ones capture is not counted
                    times.append(took)
        before, after = (statistics.median(times_of[leave]) for leave in (False, True))
        fastest, fastest_after = min(times_of[False]), min(times_of[True])
        cells = f"{before:.0f} | {fastest:.0f} | {after:.0f} | {fastest_after:.0f} | {before / after:.2f}×"
        print(f"| {name} | {cells} |", flush=True)
    if "captured" in args.engines:
        ids, mask, numbers = prompts
        cached_bytes = [steps.kept()]
        for few, draws in ((args.rows, None), (args.rows // 2, numbers[: args.rows // 2])):
            steps(ids[:few], mask[:few], draws)
            cached_bytes.append(steps.kept())
        print(
            "\ncaptured steps keep, with one, two and three shapes, MiB:",
            *(f"{nbytes / 2**20:.0f}" for nbytes in cached_bytes),
        )


if __name__ == "__main__":
    main()
