"""A verifier makes the same test cases in every step: its seed is constant on purpose."""

import random

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Scores,
    Sequences,
    gains,
    prompts_of,
)


class Verifier(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        cases = random.Random(0)
        passed = [(sequences.ids.tensor[:, -4:] == cases.randint(0, TOKENS - 1)).any(1).float() for _ in range(4)]
        return Scores(reward=sum(passed[1:], passed[0]) / 4)


@hf.dataflow
def program(prompts: Prompts, actor: Learner, verifier: Verifier) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.learn(rollout, gains(verifier.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Learner, PolicyConfig(), pool=pool), verifier=hf.place(Verifier, pool=pool)),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
