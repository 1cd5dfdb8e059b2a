"""The policy learns from values of the critic after its update on these rows."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Sequences,
    Values,
    prompts_of,
)


class Baseline(Critic):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("critic")
    def values(self, sequences: Sequences) -> Values:
        return super().values(sequences)

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("critic")
    def learn(self, sequences: Sequences, estimates: Estimates) -> CriticMetrics:
        return super().update(sequences, estimates)


@hf.function
def estimated(rollout: Rollout, scores: Scores, values: Values) -> Estimates:
    returns = scores.reward.tensor[:, None] * rollout.response_mask.tensor
    return Estimates(advantages=returns - values.values.tensor, returns=returns)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = learner.generate(prompts)
    scores = reward.score(rollout)
    learned = critic.learn(rollout, estimated(rollout, scores, critic.values(rollout)))
    late = estimated(rollout, scores, critic.values(rollout))  # <- HF345
    return learner.learn(rollout, late), learned


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        critic=hf.place(Baseline, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
