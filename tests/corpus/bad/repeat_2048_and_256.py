# mypy: disable-error-code="empty-body"
"""2048 responses are merged with the columns of the 256 prompts that they were sampled from.

Seen: https://github.com/ByteDance-Seed/cudaLLM/issues/1
Elsewhere: union asserts identical batch sizes (2048 and 256) inside the trainer's loop, after the whole rollout.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores


class Tests(hf.Batch):
    unit_tests: hf.Obj[list[str], B]


class Kernels(Rollout):
    unit_tests: hf.Obj[list[str], B]


@hf.dataflow
def rollout(prompts: Prompts, tests: Tests, actor: Actor, reward: Reward) -> tuple[Kernels, Scores]:
    generated = actor.generate(hf.repeat(prompts, 8))
    batch = hf.merge(Kernels, tests, generated)  # <- HF212
    return batch, reward.score(batch)


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    rollout,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 256, P: 2048, R: 4096},
)
