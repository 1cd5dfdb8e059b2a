"""A rule that divides by what may be 0."""

import torch

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Scores, Sequences
from hfdsl.rl.workers import Verifier, VerifierConfig


def share_of_sevens(response: list[int], task: dict[str, int]) -> float:
    # good: return response.count(7) / max(task["length"], 1)
    return response.count(7) / task["length"]  # bad


@hf.dataflow
def program(prompts: Prompts, sequences: Sequences, verifier: Verifier) -> Scores:
    return verifier.score(prompts, sequences)


ids, mask = torch.full((2, 3), 7), torch.ones(2, 3, dtype=torch.bool)
prompts = Prompts(ids=ids, mask=mask, task=[{"length": 3}, {"length": 0}])
sequences = Sequences(ids=ids.repeat(1, 2), mask=mask.repeat(1, 2), response_mask=mask)
pool = hf.ResourcePool([2], name="pool")
deployment = hf.Deployment(verifier=hf.place(Verifier, VerifierConfig(function=share_of_sevens), pool=pool))
with program.compile(deployment).launch("local") as running:
    running.step(prompts, sequences)  # <-
