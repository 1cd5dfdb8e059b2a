"""The engine that samples, with the weights of the step, is also asked for the reference."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    Sequences,
    prompts_of,
)


class Scoring(Engine):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        return RefLogProbs(ref_log_probs=self.chosen(sequences.ids.tensor))


@hf.function
def held(scores: Scores, rollout: Rollout, reference: RefLogProbs) -> Advantages:
    gap = rollout.log_probs.tensor - reference.ref_log_probs.tensor
    return Advantages(advantages=(scores.reward.tensor[:, None] - 0.1 * gap) * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Scoring, reward: Reward) -> ActorMetrics:
    hf.sync(learner, engine)
    rollout = engine.sample(prompts)
    ref = engine.log_probs(rollout)  # <- HF340
    return learner.learn(rollout, held(reward.score(rollout), rollout, ref))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        engine=hf.place(Scoring, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
