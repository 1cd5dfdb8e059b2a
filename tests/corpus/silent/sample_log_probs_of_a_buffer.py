"""Fresh responses get the log-probs of those in a replay buffer."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout


@hf.dataflow
def program(prompts: Prompts, buffer: Rollout, actor: Actor, reward: Reward) -> ActorMetrics:
    fresh = actor.generate(prompts)
    mixed = Rollout(ids=fresh.ids, response_mask=fresh.response_mask, log_probs=buffer.log_probs)  # <- HF334
    return actor.update(mixed, gained(reward.score(mixed), mixed))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
)
