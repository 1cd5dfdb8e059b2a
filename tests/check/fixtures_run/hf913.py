"""A judge that says its mark in other words than are looked for."""

import torch

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Scores, Sequences
from hfdsl.rl.workers import Judge, JudgeConfig, ServerConfig
from tests.rl.workers.server import serving


@hf.dataflow
def program(prompts: Prompts, sequences: Sequences, judge: Judge) -> Scores:
    return judge.score(prompts, sequences)


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


ids, mask = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
prompts = Prompts(ids=ids, mask=mask, task=[{}, {}])
sequences = Sequences(ids=ids.repeat(1, 2), mask=mask.repeat(1, 2), response_mask=mask)
pool = hf.ResourcePool([2], use_gpu=False, name="pool")
with serving() as here:
    server, question = ServerConfig(here.url, model="judge"), "How good is {response} after {prompt}?"
    # good: config = JudgeConfig(server, question, letters, pattern=r"Mark: (\d+)")
    config = JudgeConfig(server, question, letters, pattern=r"Grade: (\d+)")  # bad
    deployment = hf.Deployment(judge=hf.place(Judge, config, pool=pool))
    with program.compile(deployment).launch("local") as running:
        running.step(prompts, sequences)  # <-
