# mypy: disable-error-code="empty-body, arg-type"
"""The KL penalty in the reward reads a response mask that is computed later.

Seen: https://github.com/Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR/issues/20
Elsewhere: a KeyError in the driver right after the first rollout, only with use_kl_in_reward.
"""

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, i64, register
from tests.corpus.vocabulary import B, P, Prompts, R, T


class Generated(hf.Batch):
    ids: i64[B, T]
    log_probs: f32[B, R]
    ref_log_probs: f32[B, R]


class Masked(Generated):
    response_mask: bool_[B, R]


class Rewarded(hf.Batch):
    token_level_rewards: f32[B, R]


class ActorRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Generated: ...

    @register(Dispatch.DP_PROTO)
    def update(self, batch: Masked, rewards: Rewarded) -> None: ...


@hf.function
def apply_kl_penalty(batch: Masked) -> Rewarded: ...


@hf.function
def compute_response_mask(batch: Generated) -> Masked: ...


@hf.dataflow
def dapo(prompts: Prompts, actor: ActorRollout) -> Rewarded:
    generated = actor.generate(hf.repeat(prompts, 16))
    rewards = apply_kl_penalty(generated)  # <- HF204
    actor.update(compute_response_mask(generated), rewards)
    return rewards


experiment = hf.Experiment(
    dapo, hf.Deployment(actor=hf.place(ActorRollout, pool=hf.ResourcePool([8]))), dims={B: 512, P: 2048, R: 20480}
)
