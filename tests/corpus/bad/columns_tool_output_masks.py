# mypy: disable-error-code="empty-body, attr-defined"
"""The actor expects a mask of the tools' output that generation does not return.

Seen: https://github.com/GAIR-NLP/ToRL/issues/8
Elsewhere: a KeyError on a worker in update_actor, after rollout, scores, old log-probabilities and advantages.
"""

import hfdsl as hf
from hfdsl import Dispatch, bool_, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout


class ToolMasks(hf.Batch):
    tool_output_masks: bool_[B, R]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate_with_tools(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def update_actor(self, rollout: Rollout, masks: ToolMasks, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor) -> ActorMetrics:
    rollout = actor.generate_with_tools(prompts)
    masks = ToolMasks(tool_output_masks=rollout.tool_output_masks)  # <- HF201
    return actor.update_actor(rollout, masks, advantages_of(rollout))


experiment = hf.Experiment(
    grpo, hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([8]))), dims={B: 128, P: 400, R: 3072}
)
