# mypy: disable-error-code="empty-body"
"""The engine's length is set to the response's 16 tokens, but the prompt of 44 must fit, too.

Seen: https://github.com/google/tunix/pull/222
Elsewhere: only the response was checked against the limit; vLLM truncates the output or fails in its engine process.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Reward, Rollout, Scores


class VllmSampler(hf.Worker):
    def __init__(self, max_model_len: int) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("R <= max_model_len", "P + R <= max_model_len")
    def sample(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def rollouts(prompts: Prompts, sampler: VllmSampler, reward: Reward) -> Scores:
    return reward.score(sampler.sample(prompts))  # <- HF322


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    rollouts,
    hf.Deployment(
        sampler=hf.place(VllmSampler, max_model_len=16, pool=pool, mesh=hf.Mesh(dp=1, tp=4)),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 44, R: 16},
)
