# mypy: disable-error-code="empty-body"
"""A masked KL is called with the new and the old policy's probabilities swapped.

Seen: https://github.com/lucidrains/PaLM-rlhf-pytorch/issues/43
Elsewhere: silent: both have one type and shape, and the reverse KL is a plausible number as well.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Sequences


class Policy(Actor):
    @register(Dispatch.THREE_D_PROTO)
    def action_probs(self, sequences: Sequences) -> f32[B, R]: ...


@hf.function
def masked_kl_div(old_action_probs: f32[B, R], action_probs: f32[B, R]) -> f32[B]: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Policy, old: Policy) -> f32[B]:
    rollout = actor.generate(prompts)
    action_probs = actor.action_probs(rollout)
    old_action_probs = old.action_probs(rollout)
    return masked_kl_div(action_probs, old_action_probs)  # <- HF230


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=pool), old=hf.place(Policy, PolicyConfig(), pool=pool)),
    dims={B: 16, P: 512, R: 512},
)
