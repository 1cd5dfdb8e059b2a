# mypy: disable-error-code="empty-body"
"""10 prompts in groups of 6 make 60 rollouts for the 8 agent workers of 2 GPUs.

Seen: https://github.com/Red-Hat-AI-Innovation-Team/training_hub/pull/60
Elsewhere: a preflight written around verl has to compute this product by hand before it starts the trainer.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout

GPUS, GROUP = 2, 6


class AgentLoop(hf.Worker):
    """Runs conversations with tools; four workers for each GPU."""

    @register(Dispatch.DP_PROTO)
    def run(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def judge(self, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def lora_grpo(prompts: Prompts, agents: AgentLoop, actor: Actor) -> ActorMetrics:
    rollout = agents.run(hf.repeat(prompts, GROUP))  # <- HF310
    return actor.update(rollout, agents.judge(rollout))


experiment = hf.Experiment(
    lora_grpo,
    hf.Deployment(
        agents=hf.place(AgentLoop, pool=hf.ResourcePool([4 * GPUS], use_gpu=False)),
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([GPUS])),
    ),
    dims={B: 10, P: 512, R: 512},
)
