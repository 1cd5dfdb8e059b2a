"""Two critics of the same rewards bootstrap from each other, as in double learning."""

import hfdsl as hf
from hfdsl.rl.batches import B, Experience, P, Prompts, R
from hfdsl.rl.functions import generalized_advantages, kl_penalized_rewards
from tests.corpus.ready_records import Critic, Judge, Loss, Policy, Reference, places, prompts_of, targets_of


@hf.dataflow
def program(
    prompts: Prompts, policy: Policy, reference: Reference, judge: Judge, critic: Critic, twin: Critic
) -> tuple[Loss, Loss, Loss]:
    rollout = policy.sample(prompts)
    ref, values, twin_values = reference.log_probs(rollout), critic.values(rollout), twin.values(rollout)
    rewards = kl_penalized_rewards(rollout, ref, judge.score(rollout))
    gains = generalized_advantages(rollout, rewards, values)
    twin_gains = generalized_advantages(rollout, rewards, twin_values)
    learned = policy.learn(hf.merge(Experience, rollout, gains))
    first, second = targets_of(rollout, values, twin_gains), targets_of(rollout, twin_values, gains)
    return learned, critic.learn(first), twin.learn(second)


experiment = hf.Experiment(program, places("critic", "twin"), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
