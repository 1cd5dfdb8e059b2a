# mypy: disable-error-code="empty-body"
"""The last evaluation batch has 39 prompts, and is later split into 4 mini-batches.

Seen: https://github.com/NovaSky-AI/SkyRL/issues/1583
Elsewhere: SkyRL asserts without a message at the first evaluation, after its generation has finished, and the run ends.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores

TRAIN_BATCH, VALIDATION_SET = 64, 1319
LAST = VALIDATION_SET % TRAIN_BATCH


@hf.dataflow
def evaluate(prompts: Prompts, actor: Actor, reward: Reward) -> list[Scores]:
    rollout = actor.generate(prompts)
    return [reward.score(part) for part in hf.minibatches(rollout, 4)]  # <- HF310


experiment = hf.Experiment(
    evaluate,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8]), mesh=hf.Mesh(dp=1, tp=8)),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: LAST, P: 512, R: 512},
)
