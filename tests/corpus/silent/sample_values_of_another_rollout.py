"""Values are those of a first rollout, and the policy learns from a second one."""

import hfdsl as hf
from tests.corpus.advantages import less_values
from tests.corpus.vocabulary import Actor, ActorMetrics, B, Critic, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, critic: Critic) -> ActorMetrics:
    tried, rollout = actor.generate(prompts), actor.generate(prompts)
    values = critic.values(tried)
    return actor.update(rollout, less_values(rollout, values, reward.score(rollout)))  # <- HF334


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        critic=hf.place(Critic, PolicyConfig(), 1, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
