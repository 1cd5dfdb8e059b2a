"""The reference is a frozen model, and the policy's own log-probs are no reference."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


@hf.function
def held(scores: Scores, now: RefLogProbs, reference: RefLogProbs, rollout: Rollout) -> Advantages:
    gap = now.ref_log_probs.tensor - reference.ref_log_probs.tensor
    return Advantages(advantages=(scores.reward.tensor[:, None] - 0.1 * gap) * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, reference: Reference, reward: Reward) -> ActorMetrics:
    rollout = learner.generate(prompts)
    now, ref = learner.log_probs_now(rollout), reference.log_probs(rollout)
    return learner.learn(rollout, held(reward.score(rollout), now, ref, rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        learner=hf.place(Learner, PolicyConfig(), pool=pool),
        reference=hf.place(Reference, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
