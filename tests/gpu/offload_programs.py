"""A reference that reports the memory that its GPU holds, for processes that import their roles."""

from __future__ import annotations

import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ImitationMetrics, ReferenceLogProbs, Sequences


def allocated() -> int:
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


class Weighed(w.Reference):
    """Tells how much of its GPU a process has in use while the reference works."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def allocated(self) -> int:
        return allocated()


@hf.dataflow
def supervised(
    sequences: Sequences, actor: w.Actor, reference: Weighed
) -> tuple[ReferenceLogProbs, hf.PerRank[int], ImitationMetrics]:
    log_probs, held = reference.log_probs(sequences), reference.allocated()
    return log_probs, held, actor.imitate(sequences)
