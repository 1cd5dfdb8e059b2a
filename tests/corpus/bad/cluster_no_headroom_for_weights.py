# mypy: disable-error-code="empty-body"
"""The engine keeps 90% of its GPU, and the weights of a 7B model that are sent to it need another 14 GiB.

Seen: https://github.com/huggingface/trl/issues/2927
Elsewhere: out of memory after some steps; 8 GB are left on an 80 GB GPU, enough for a 3B model.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores


class Vllm(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class GrpoTrainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...


@hf.dataflow
def grpo(prompts: Prompts, engine: Vllm, trainer: GrpoTrainer, reward: Reward) -> ActorMetrics:
    rollout = engine.generate(hf.repeat(prompts, 4))
    return trainer.update(rollout, reward.score(rollout))


gpu = hf.ResourcePool([1])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        engine=hf.place(Vllm, pool=gpu, gpu_memory="90%"),
        trainer=hf.place(GrpoTrainer, pool=gpu, gpu_memory="14GiB"),  # <- HF504
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 4, P: 512, R: 512},
    cluster=hf.Cluster(hf.Nodes(1, gpus=1, gpu_memory_gib=80, cpus=16)),
)
