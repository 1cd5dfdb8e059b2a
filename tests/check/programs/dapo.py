# mypy: disable-error-code="empty-body"
"""DAPO: groups without a difference teach nothing and are dropped; what is left is filled up to the batch."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.programs.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout

GROUP, BATCH = 16, 512


class Judged(Rollout):
    reward: hf.f32[B]
    mixed: hf.bool_[B]


class Policy(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...


class Verifier(hf.Worker):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(GROUP))
    def judge(self, rollout: Rollout) -> Judged: ...


@hf.function(rows=hf.Grouped(GROUP))
def compare(judged: Judged) -> Advantages: ...


@hf.dataflow
def program(prompts: Prompts, policy: Policy, verifier: Verifier) -> list[ActorMetrics]:
    judged = verifier.judge(policy.generate(hf.repeat(prompts, GROUP)))
    kept = hf.filter(judged, judged.mixed, group=GROUP)
    advantages = hf.fill(compare(kept), BATCH)
    parts = zip(hf.minibatches(hf.fill(kept, BATCH), 4), hf.minibatches(advantages, 4), strict=True)
    return [policy.update(rollout, part) for rollout, part in parts]


pool = hf.ResourcePool([8])
deployment = hf.Deployment(
    policy=hf.place(Policy, pool=pool, mesh=hf.Mesh(dp=4, tp=2)),
    verifier=hf.place(Verifier, pool=hf.ResourcePool([2], use_gpu=False)),
)
dims = {B: 96, P: 256, R: 1024}
