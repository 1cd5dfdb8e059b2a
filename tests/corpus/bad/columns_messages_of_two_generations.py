# mypy: disable-error-code="empty-body"
"""ReMax generates twice in multi-turn conversations, and both generations return a column 'messages'.

Seen: https://github.com/verl-project/verl/issues/3027
Elsewhere: union asserts equal 'messages' in the driver, after both generations; the same script runs with GRPO.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B, P, Prompts, R, Reward, Rollout, Scores


class Conversation(Rollout):
    messages: hf.Obj[list[str], B]


class Baseline(hf.Batch):
    messages: hf.Obj[list[str], B]
    reward_baselines: f32[B]


class Remax(Conversation):
    reward_baselines: f32[B]


class AsyncRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def chat(self, prompts: Prompts) -> Conversation: ...


@hf.function
def baseline_of(greedy: Conversation, scores: Scores) -> Baseline: ...


@hf.dataflow
def remax(prompts: Prompts, engine: AsyncRollout, reward: Reward) -> Remax:
    greedy, sampled = engine.chat(prompts), engine.chat(prompts)
    baseline = baseline_of(greedy, reward.score(greedy))
    return hf.merge(Remax, sampled, baseline)  # <- HF205


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    remax,
    hf.Deployment(engine=hf.place(AsyncRollout, pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 256, P: 1024, R: 1024},
)
