# mypy: disable-error-code="empty-body, call-arg"
"""A reward function is called with completion_ids, which is not documented.

Seen: https://github.com/huggingface/trl/issues/4939
Elsewhere: a TypeError in the first reward computation, after the first generation; the type hints differed.
"""

import hfdsl as hf
from hfdsl import i64
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores, T


@hf.function
def accuracy_reward(prompts: Prompts, completions: Rollout) -> Scores: ...


class CompletionIds(hf.Batch):
    completion_ids: i64[B, T]


@hf.dataflow
def score(prompts: Prompts, policy: Actor) -> Scores:
    rollout = policy.generate(prompts)
    ids = CompletionIds(completion_ids=rollout.ids)
    return accuracy_reward(prompts=prompts, completions=rollout, completion_ids=ids)  # <- HF202


experiment = hf.Experiment(
    score,
    hf.Deployment(policy=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 8, P: 512, R: 256},
)
