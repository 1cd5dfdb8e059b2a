"""A policy that looks for costly responses, to find what a judge reacts to, and pays for leaving its reference."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R, Scores
from hfdsl.rl.functions import kl_penalized_rewards, normalized_returns
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, places, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    sought = Scores(score=judge.cost(rollout).cost)
    rewards = kl_penalized_rewards(rollout, reference.log_probs(rollout), sought)
    return policy.learn(hf.merge(Experience, rollout, normalized_returns(rollout, rewards)))


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
