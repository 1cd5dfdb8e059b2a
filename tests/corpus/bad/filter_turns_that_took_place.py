# mypy: disable-error-code="empty-body"
"""Agents take different numbers of turns, which are split into a fixed number of mini-batches.

Seen: https://github.com/langfengQ/verl-agent/issues/35
Elsewhere: the number of rows is known only after the rollout; users ask how the mini-batch size can divide it.
"""

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Rollout


class Turns(Rollout):
    took_place: bool_[B]
    advantages: f32[B, R]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def play(self, prompts: Prompts) -> Turns: ...

    @register(Dispatch.DP_PROTO)
    def update(self, turns: Turns) -> ActorMetrics: ...


@hf.dataflow
def gigpo(prompts: Prompts, policy: Policy) -> ActorMetrics:
    turns = policy.play(hf.repeat(prompts, 50))
    return policy.update(hf.filter(turns, turns.took_place))  # <- HF321


experiment = hf.Experiment(
    gigpo, hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([2]))), dims={B: 128, P: 2048, R: 512}
)
