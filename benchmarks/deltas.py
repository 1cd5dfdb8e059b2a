"""What sending only the elements that an update changes would save, and what finding them costs, on one core.

python -m benchmarks.deltas

Weights like those of a language model learn by AdamW from random gradients, in float32, and are exported in bfloat16. A
change is sent as its index in 4 bytes and its value in 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

ELEMENTS = 16 * 2**20
RATES = (1e-6, 3e-6, 1e-5)


class Learner:
    """AdamW without weight decay."""

    def __init__(self) -> None:
        self.weights, self.steps = torch.randn(ELEMENTS) * 0.02, 0
        self.moments = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)

    def step(self, rate: float) -> torch.Tensor:
        """The weights after an update, bf16[ELEMENTS]."""
        self.steps += 1
        first, second = self.moments
        gradient = torch.randn(ELEMENTS) * 1e-3
        first.mul_(0.9).add_(gradient, alpha=0.1)
        second.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        scale = (second / (1 - 0.95**self.steps)).sqrt() + 1e-8
        self.weights.sub_(rate * first / (1 - 0.9**self.steps) / scale)
        return self.weights.bfloat16()


def changes(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The indices of elements whose bits differ."""
    return (before != after).nonzero().view(-1)


def seconds(function: Callable[[], Any]) -> float:
    """The least CPU time of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| learning rate | changed | bytes | find | pick | write | copy all |\n|---|---:|---:|---:|---:|---:|---:|")
    for rate in RATES:
        learner = Learner()
        old, new = [learner.step(rate) for _ in range(4)][2:]
        before, after = old.view(torch.int16), new.view(torch.int16)
        places = changes(before, after)
        copy, values = before.clone(), after[places]
        times = [
            seconds(partial(changes, before, after)),
            seconds(partial(torch.index_select, after, 0, places)),
            seconds(partial(copy.index_copy_, 0, places, values)),
            seconds(partial(torch.empty_like(after).copy_, after)),
        ]
        if not torch.equal(copy, after):
            raise RuntimeError("the copy is not what was sent")
        share = len(places) / ELEMENTS
        cells = " | ".join(f"{seconds_taken * 1e3:.0f} ms" for seconds_taken in times)
        print(f"| {rate:g} | {share:.1%} | {3 * share:.1%} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
