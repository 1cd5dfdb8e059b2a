# mypy: disable-error-code="empty-body"
"""Trajectories carry no log-probabilities of the rollout, but the update corrects for them.

Seen: https://github.com/verl-project/uni-agent/pull/92
Elsewhere: silent: they are replaced by zeros, which the trainer then uses.
"""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Sequences


class Trajectories(Sequences):
    rollout_log_probs: f32[B, R] | None = None


@dataclass(frozen=True)
class GatewayConfig:
    logprobs: bool = False


class Gateway(hf.Worker):
    def __init__(self, config: GatewayConfig) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.provides("rollout_log_probs", when="logprobs")
    def run_agents(self, prompts: Prompts) -> Trajectories: ...


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, sequences: Sequences, rollout_log_probs: f32[B, R]) -> ActorMetrics: ...


@hf.dataflow
def agents(prompts: Prompts, gateway: Gateway, actor: Actor) -> ActorMetrics:
    trajectories = gateway.run_agents(prompts)
    return actor.update(trajectories, hf.present(trajectories.rollout_log_probs))  # <- HF231


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    agents,
    hf.Deployment(gateway=hf.place(Gateway, GatewayConfig(), pool=pool), actor=hf.place(Actor, pool=pool)),
    dims={B: 64, P: 2048, R: 4096},
)
