# mypy: disable-error-code="empty-body"
"""2 GPUs with one row each and 2 accumulation steps make 4 rows, and the group is raised from 4 to 8.

Seen: https://github.com/modelscope/ms-swift/issues/4589
Elsewhere: ms-swift divides 4 by 8, gets 0, and fails in range() with a zero step when the first batch is prepared.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, Advantages, B, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores

GPUS, PER_DEVICE, ACCUMULATE, NUM_GENERATIONS = 2, 1, 2, 8


@hf.function(rows=hf.Grouped(NUM_GENERATIONS))
def group_advantages(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def experience(completions: Prompts, actor: Actor, reward: Reward) -> tuple[Rollout, Advantages]:
    rollout = actor.generate(completions)
    return rollout, group_advantages(reward.score(rollout), rollout)  # <- HF313


pool = hf.ResourcePool([GPUS])
experiment = hf.Experiment(
    experience,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: GPUS * PER_DEVICE * ACCUMULATE, P: 4096, R: 512},
)
