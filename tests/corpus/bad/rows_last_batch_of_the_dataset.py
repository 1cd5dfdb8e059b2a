# mypy: disable-error-code="empty-body"
"""One of 8 GPUs serves vLLM, and the dataset's last batch of 1850 % 14 = 2 prompts meets 7 training processes.

Seen: https://github.com/huggingface/open-r1/issues/299
Elsewhere: an assertion on active sub-modules inside ZeRO-3, late in training; users found the divisibility by trial.
"""

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
)

PER_DEVICE, ACCUMULATE, TRAINERS, DATASET = 1, 2, 7, 1850


@hf.function
def advantages_of(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def last_step(prompts: Prompts, actor: Actor, reward: Reward) -> ActorMetrics:
    rollout = actor.generate(prompts)  # <- HF310
    return actor.update(rollout, advantages_of(reward.score(rollout), rollout))


train, serve = hf.ResourcePool([8]).split([TRAINERS, 1])
experiment = hf.Experiment(
    last_step,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=train), reward=hf.place(Reward, pool=serve)),
    dims={B: DATASET % (PER_DEVICE * ACCUMULATE * TRAINERS), P: 512, R: 1024},
)
