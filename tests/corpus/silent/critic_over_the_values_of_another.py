"""The advantages and returns of cost are estimated over the values of the critic of reward."""

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
    rewards, costs = (
        kl_penalized_rewards(rollout, ref, judge.score(rollout)),
        kl_penalized_costs(rollout, ref, judge.cost(rollout)),
    )
    gains = generalized_advantages(rollout, rewards, values)
    harms = generalized_advantages(rollout, costs, values)  # <- HF354
    learned = policy.learn(hf.merge(Experience, rollout, safe_advantages(gains, harms, 0.5)))
    first, second = targets_of(rollout, values, gains), targets_of(rollout, cost_values, harms)
    return learned, critic.learn(first), cost_critic.learn(second)


experiment = hf.Experiment(program, places("critic", "cost_critic"), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
