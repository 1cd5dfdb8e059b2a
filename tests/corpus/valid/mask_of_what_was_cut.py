"""Responses that were cut lose a part of their score: they alone have a token in the last column."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R, ReferenceLogProbs, Rewards, Rollout, Scores
from hfdsl.rl.functions import normalized_returns
from hfdsl.rl.rewards import token_rewards
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, places, prompts_of


@hf.function
def penalized(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores, *, kl: float = 0.05) -> Rewards:
    mask = rollout.response_mask.tensor
    rewards = token_rewards(scores.score.tensor, mask)
    rewards -= kl * (rollout.log_probs.tensor - ref.ref_log_probs.tensor)
    rewards[:, -1] -= 0.5 * mask[:, -1]
    return Rewards(rewards=rewards)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    rewards = penalized(rollout, reference.log_probs(rollout), judge.score(rollout))
    gains = normalized_returns(rollout, rewards)
    return policy.learn(hf.merge(Experience, rollout, gains))


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
