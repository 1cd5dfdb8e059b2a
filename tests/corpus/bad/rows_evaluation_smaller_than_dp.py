# mypy: disable-error-code="empty-body"
"""An evaluation batch of 3 prompts is split over 8 data-parallel ranks.

Seen: https://github.com/NovaSky-AI/SkyRL/pull/62
Elsewhere: the tail that did not fit was dropped, so evaluation continued without any prompt.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, Critic, P, PolicyConfig, Prompts, R, Values


@hf.dataflow
def evaluate(prompts: Prompts, actor: Actor, critic: Critic) -> Values:
    rollout = actor.generate(prompts)
    return critic.values(rollout)  # <- HF310


left, right = hf.ResourcePool([8]), hf.ResourcePool([8])
experiment = hf.Experiment(
    evaluate,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=left, mesh=hf.Mesh(dp=1, tp=8)),
        critic=hf.place(Critic, PolicyConfig(), pool=right),
    ),
    dims={B: 3, P: 512, R: 512},
)
