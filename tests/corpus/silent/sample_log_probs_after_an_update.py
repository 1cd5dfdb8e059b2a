"""The responses of before an update get the log-probs of those that are sampled after it."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import Actor, ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout, prompts_of


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, ActorMetrics]:
    before = actor.generate(prompts)
    metrics = actor.update(before, gained(reward.score(before), before))
    after = actor.generate(prompts)
    mixed = Rollout(ids=before.ids, response_mask=before.response_mask, log_probs=after.log_probs)  # <- HF334
    return metrics, actor.update(mixed, gained(reward.score(mixed), mixed))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
