"""What a rank's digests cost on its GPU: one kernel, the kernels of torch, and a plain read of the same bytes.

python -m benchmarks.gpu.digests                # one GPU: Llamas of 1.3B and 7B in bf16
python -m benchmarks.gpu.digests --models 1.3B --times 20
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from benchmarks.gpu.models import SIZES
from benchmarks.gpu.timing import busy, seconds
from hfdsl.runtime.digests import DeviceSums, as_words, digests
from hfdsl.runtime.weights.held_parts import HeldPart


def weights(size: str) -> dict[str, torch.Tensor]:
    """Random parameters of a Llama, on the GPU."""
    return {
        parameter.name: torch.randn(parameter.shape, dtype=torch.bfloat16, device="cuda")
        for parameter in SIZES[size].parameters()
    }


def largest(held: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """A plain read of every word, in a kernel a weight."""
    return [weight.view(torch.int64).max() for weight in held.values()]


def by_torch(parts: dict[str, HeldPart]) -> dict[int, int]:
    """The digests from torch's own sums."""
    sums = DeviceSums()
    for index, part in enumerate(parts.values()):
        words = as_words(part.tensor, (0,) * part.tensor.dim())
        sums.add(index, words, words.shape, (0,) * part.tensor.dim())
    return sums.digests()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["1.3B", "7B"], choices=SIZES)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    for size in arguments.models:
        held = weights(size)
        parts = {name: HeldPart(weight) for name, weight in held.items()}
        count = sum(weight.nbytes for weight in held.values())
        fused = [digest.value for digest in digests(parts.items())]
        assert fused == [value % 2**64 for _, value in sorted(by_torch(parts).items())]
        maximum_seconds = busy(partial(largest, held), arguments.times)
        rows = {
            "one kernel": seconds(partial(digests, parts.items()), arguments.times),
            "torch's sums": seconds(partial(by_torch, parts), arguments.times),
        }
        print(
            f"{size}: {count / 1e9:.2f} GB in {len(held)} weights; a maximum over them {maximum_seconds * 1e3:.2f} ms"
        )
        for name, row_seconds in rows.items():
            print(f"  {name:14s} {row_seconds * 1e3:8.2f} ms  {count / row_seconds / 1e9:8.1f} GB/s", flush=True)


if __name__ == "__main__":
    main()
