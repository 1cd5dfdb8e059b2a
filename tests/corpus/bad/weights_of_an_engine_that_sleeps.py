# mypy: disable-error-code="empty-body"
"""The engine sleeps while the policy is trained, and wakes up without the new weights.

Seen: https://github.com/huggingface/trl/issues/5312
Elsewhere: silent: only the importance ratio shows it, which drifts away from 1 step by step.
"""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import ActorMetrics, B, P, Prompts, R, Reward, Rollout, Scores


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, scores: Scores) -> ActorMetrics: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def state_dict(self) -> dict[str, list[float]]: ...


class Vllm(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def wake_up(self) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    def sleep(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load_weights(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def grpo(prompts: Prompts, policy: Policy, vllm: Vllm, reward: Reward) -> ActorMetrics:
    vllm.wake_up()
    rollout = vllm.generate(hf.repeat(prompts, 4))  # <- HF510
    vllm.sleep()
    return policy.update(rollout, reward.score(rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    grpo,
    hf.Deployment(
        policy=hf.place(Policy, pool=pool), vllm=hf.place(Vllm, pool=pool), reward=hf.place(Reward, pool=pool)
    ),
    dims={B: 4, P: 16, R: 6},
)
