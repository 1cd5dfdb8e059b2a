"""Two players have an engine each, and both engines get the weights of one player."""

import hfdsl as hf
from tests.corpus.advantages import Experience, gained
from tests.corpus.policies import Engine, Policy
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(
    prompts: Prompts, white: Policy, black: Policy, first: Engine, second: Engine, reward: Reward
) -> list[ActorMetrics]:
    metrics = list[ActorMetrics]()
    for player, engine in ((white, first), (black, second)):
        rollout = engine.sample(prompts)
        experience = hf.merge(Experience, rollout, gained(reward.score(rollout), rollout))
        metrics.append(player.learn(experience))  # <- HF335
    hf.sync(black, first)
    hf.sync(black, second)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        white=hf.place(Policy, PolicyConfig(), pool=pool),
        black=hf.place(Policy, PolicyConfig(), pool=pool),
        first=hf.place(Engine, PolicyConfig(), pool=pool),
        second=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
