# mypy: disable-error-code="empty-body"
"""The rollout engine keeps 70% of every GPU, and training needs more than the rest.

Seen: https://github.com/hiyouga/EasyR1/pull/1
Elsewhere: out of memory on GPUs with 80 GB, when engine and training state coexist; the default was lowered to 60%.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores


class VllmRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class FsdpActor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...


@hf.dataflow
def grpo(prompts: Prompts, engine: VllmRollout, actor: FsdpActor, reward: Reward) -> ActorMetrics:
    rollout = engine.generate(hf.repeat(prompts, 5))
    return actor.update(rollout, reward.score(rollout))


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        engine=hf.place(VllmRollout, pool=pool, gpu_memory="70%"),
        actor=hf.place(FsdpActor, pool=pool, gpu_memory="38%"),  # <- HF504
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 512, P: 2048, R: 2048},
)
