# mypy: disable-error-code="empty-body, arg-type"
"""Rewards arrive as one result per remote worker, but one record of all rows is expected.

Seen: https://github.com/OpenRLHF/OpenRLHF/issues/1118
Elsewhere: the documented reply is a dictionary of lists, the code takes a list of dictionaries, in the first step.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor, ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class RemoteReward(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def get_reward(self, rollout: Rollout) -> Scores: ...


@hf.function(rows=hf.Whole)
def normalized(scores: Scores, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def reinforce(prompts: Prompts, actor: Actor, remote: RemoteReward) -> ActorMetrics:
    rollout = actor.generate(prompts)
    advantages = normalized(remote.get_reward(rollout), rollout)  # <- HF401
    return actor.update(rollout, advantages)


experiment = hf.Experiment(
    reinforce,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8])),
        remote=hf.place(RemoteReward, pool=hf.ResourcePool([4], use_gpu=False)),
    ),
    dims={B: 128, P: 1024, R: 1024},
)
