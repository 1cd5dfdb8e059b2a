"""Both critics learn returns over the smaller of their values."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R, Values
from hfdsl.rl.functions import generalized_advantages, kl_penalized_costs, kl_penalized_rewards, safe_advantages
from tests.corpus.ready_records import Critic, Judge, Loss, Policy, Reference, places, prompts_of, targets_of


@hf.function
def smaller(first: Values, second: Values) -> Values:
    return Values(values=first.values.tensor.minimum(second.values.tensor))


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
    least = smaller(values, cost_values)
    gains = generalized_advantages(rollout, rewards, least)
    harms = generalized_advantages(rollout, costs, least)
    learned = policy.learn(hf.merge(Experience, rollout, safe_advantages(gains, harms, 0.5)))
    first, second = targets_of(rollout, values, gains), targets_of(rollout, cost_values, harms)
    return learned, critic.learn(first), cost_critic.learn(second)


experiment = hf.Experiment(program, places("critic", "cost_critic"), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
