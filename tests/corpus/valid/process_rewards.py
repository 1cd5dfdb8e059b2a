"""A process reward model: one score for each of S steps of a response, spread over its tokens."""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Rollout,
    Sequences,
    prompts_of,
)


class S(hf.Dim):
    """Steps of a response."""


class StepScores(hf.Batch):
    steps: f32[B, S]


class ProcessReward(hf.Worker):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    @register(Dispatch.DP_PROTO)
    @hf.requires("S == steps", "R % steps == 0")
    def grade(self, sequences: Sequences) -> StepScores:
        width = sequences.response_mask.tensor.shape[1]
        tokens = sequences.ids.tensor[:, -width:].view(len(sequences), self.steps, -1)
        return StepScores(steps=tokens.float().mean(2) / 8)


@hf.function
def spread(scores: StepScores, rollout: Rollout) -> Advantages:
    width = rollout.response_mask.tensor.shape[1] // scores.steps.tensor.shape[1]
    return Advantages(advantages=scores.steps.tensor.repeat_interleave(width, dim=1))


@hf.dataflow
def program(prompts: Prompts, actor: Actor, judge: ProcessReward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, spread(judge.grade(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(response=6), pool=pool), judge=hf.place(ProcessReward, steps=2, pool=pool)
    ),
    dims={B: 4, P: 3, R: 6, S: 2},
    batches=prompts_of(4),
)
