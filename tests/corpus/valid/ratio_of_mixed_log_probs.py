"""A function mixes the log-probs of the policy with those of the reference: a geometric mean to stay close to."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Frozen, OldLogProbs, Policy, experience_of
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.function
def halfway(old: OldLogProbs, reference: OldLogProbs) -> OldLogProbs:
    return OldLogProbs(log_probs=(old.log_probs.tensor + reference.log_probs.tensor) / 2)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Frozen, reward: Reward) -> ActorMetrics:
    rollout = policy.sample(prompts)
    old = halfway(OldLogProbs(log_probs=rollout.log_probs), reference.log_probs(rollout))
    return policy.learn(experience_of(rollout, old, gained(reward.score(rollout), rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        reference=hf.place(Frozen, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
