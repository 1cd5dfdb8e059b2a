"""The log-probs of the reference stand where those of the policy belong: the ratio is of two models."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Frozen, Policy, experience_of
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Frozen, reward: Reward) -> ActorMetrics:
    rollout = policy.sample(prompts)
    ref = reference.log_probs(rollout)
    return policy.learn(experience_of(rollout, ref, gained(reward.score(rollout), rollout)))  # <- HF335


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
