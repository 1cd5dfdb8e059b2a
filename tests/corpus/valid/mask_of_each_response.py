"""The scores of responses are whitened with a mask of ones: each response has one, and none is padding."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R, Scores
from hfdsl.rl.functions import kl_penalized_rewards, normalized_returns
from hfdsl.rl.masked import whitened
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, places, prompts_of


@hf.function(rows=hf.Whole)
def normalized(scores: Scores) -> Scores:
    import torch

    score = scores.score.tensor
    return Scores(score=whitened(score, torch.ones_like(score)))


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), normalized(judge.score(rollout)))
    gains = normalized_returns(rollout, rewards)
    return policy.learn(hf.merge(Experience, rollout, gains))


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
