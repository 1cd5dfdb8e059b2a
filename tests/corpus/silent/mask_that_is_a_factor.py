"""A function of the whole batch subtracts a mean of masked advantages, in which padding counts as zeros."""

import hfdsl as hf
from hfdsl.rl.batches import Advantages, B, Experience, P, Prompts, R, Rewards, Rollout
from hfdsl.rl.functions import kl_penalized_rewards
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, places, prompts_of


@hf.function(rows=hf.Whole)
def normalized(rollout: Rollout, rewards: Rewards) -> Advantages:
    mask = rollout.response_mask.tensor
    gains = rewards.rewards.tensor.flip(1).cumsum(1).flip(1) * mask
    centered = gains - gains.mean()  # <- HF355
    return Advantages(advantage=centered * mask)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), judge.score(rollout))
    gains = normalized(rollout, rewards)
    return policy.learn(hf.merge(Experience, rollout, gains))


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
