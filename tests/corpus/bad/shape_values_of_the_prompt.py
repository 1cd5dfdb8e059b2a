# mypy: disable-error-code="empty-body, arg-type"
"""The critic slices off the wrong end: it returns the values of the prompt's tokens instead of the response's.

Seen: https://github.com/hpcaitech/ColossalAI/pull/3623
Elsewhere: a slice [:-n] for [-n:]; its mean is a plausible number, and no error is raised.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, B, Estimates, P, PolicyConfig, Prompts, R, Reward, Rollout, Scores


class PromptValues(hf.Batch):
    value: f32[B, P]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def forward(self, rollout: Rollout) -> PromptValues: ...


@hf.function
def make_experience(rollout: Rollout, value: f32[B, R], scores: Scores) -> Estimates: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> Estimates:
    rollout = actor.generate(prompts)
    values = critic.forward(rollout)
    return make_experience(rollout, values.value, reward.score(rollout))  # <- HF210


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 32, P: 96, R: 128},
)
