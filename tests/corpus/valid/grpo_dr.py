"""Dr. GRPO: advantages are rewards less the group's mean, not divided by its deviation."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)

GROUP = 4


@hf.function(rows=hf.Grouped(GROUP))
def less_the_mean(scores: Scores, rollout: Rollout) -> Advantages:
    groups = scores.reward.tensor.view(-1, GROUP)
    centered = (groups - groups.mean(1, keepdim=True)).flatten()
    return Advantages(advantages=centered[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward) -> tuple[ActorMetrics, Scores]:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    scores = reward.score(rollout)
    return actor.update(rollout, less_the_mean(scores, rollout)), scores


train = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(mini_batch=8), pool=train, mesh=hf.Mesh(dp=2, tp=2)),
        reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
    ),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
