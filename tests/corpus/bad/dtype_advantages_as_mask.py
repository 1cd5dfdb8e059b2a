# mypy: disable-error-code="empty-body, arg-type"
"""The policy loss receives the advantages a second time, in place of the response mask.

Seen: https://github.com/verl-project/verl/issues/2506
Elsewhere: silent: both are tensors of one shape, so nothing raises; a reader of the code found it.
"""

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, register
from tests.corpus.vocabulary import Actor, Advantages, B, P, PolicyConfig, Prompts, R, Rollout


class Policy(Actor):
    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, rollout: Rollout) -> f32[B, R]: ...


@hf.function
def policy_loss(
    old_log_prob: f32[B, R], log_prob: f32[B, R], advantages: f32[B, R], response_mask: bool_[B, R]
) -> f32[B]: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def ppo(prompts: Prompts, actor: Policy) -> f32[B]:
    rollout = actor.generate(prompts)
    advantages = advantages_of(rollout).advantages
    return policy_loss(
        old_log_prob=rollout.log_probs,
        log_prob=actor.log_probs(rollout),
        advantages=advantages,
        response_mask=advantages,  # <- HF220
    )


experiment = hf.Experiment(
    ppo,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([8]))),
    dims={B: 64, P: 1024, R: 1024},
)
