"""The score goes to the last column, where only responses that were cut have a token."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R, ReferenceLogProbs, Rewards, Rollout, Scores
from hfdsl.rl.functions import normalized_returns
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, places, prompts_of


@hf.function
def penalized(rollout: Rollout, ref: ReferenceLogProbs, scores: Scores, *, kl: float = 0.05) -> Rewards:
    rewards = -kl * (rollout.log_probs.tensor - ref.ref_log_probs.tensor)
    rewards[:, -1] += scores.score.tensor  # <- HF355
    return Rewards(rewards=rewards)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    rewards = penalized(rollout, reference.log_probs(rollout), judge.score(rollout))
    gains = normalized_returns(rollout, rewards)
    return policy.learn(hf.merge(Experience, rollout, gains))


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
