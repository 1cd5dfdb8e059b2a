"""Costs with their own critic are subtracted from rewards."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R
from hfdsl.rl.functions import generalized_advantages, kl_penalized_costs, kl_penalized_rewards, safe_advantages
from tests.corpus.ready_records import Critic, Judge, Loss, Policy, Reference, places, prompts_of, targets_of


@hf.dataflow
def program(
    prompts: Prompts, policy: Policy, reference: Reference, judge: Judge, critic: Critic, cost_critic: Critic
) -> tuple[Loss, Loss, Loss]:
    rollout = policy.sample(prompts)
    ref, values, cost_values = reference.log_probs(rollout), critic.values(rollout), cost_critic.values(rollout)
    good = generalized_advantages(rollout, kl_penalized_rewards(rollout, ref, judge.score(rollout)), values)
    bad = generalized_advantages(rollout, kl_penalized_costs(rollout, ref, judge.cost(rollout)), cost_values)
    safe = safe_advantages(good, bad, 0.5)
    learned = critic.learn(targets_of(rollout, values, good)), cost_critic.learn(targets_of(rollout, cost_values, bad))
    return policy.learn(hf.merge(Experience, rollout, safe)), *learned


experiment = hf.Experiment(program, places("critic", "cost_critic"), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
