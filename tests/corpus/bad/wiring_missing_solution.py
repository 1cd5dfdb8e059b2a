# mypy: disable-error-code="empty-body, call-arg"
"""The accuracy reward needs the solutions, but the trainer calls it without them.

Seen: https://github.com/FareedKhan-dev/train-deepseek-r1/issues/2
Elsewhere: a TypeError for a missing positional argument at step 0 of 36220, after the first generation.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class Solutions(hf.Batch):
    solution: hf.Obj[str, B]


@hf.function
def accuracy_reward(completions: Rollout, solution: Solutions) -> Scores: ...


@hf.dataflow
def grpo(prompts: Prompts, solutions: Solutions, policy: Actor) -> Scores:
    completions = policy.generate(prompts)
    return accuracy_reward(completions)  # <- HF203


experiment = hf.Experiment(
    grpo,
    hf.Deployment(policy=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 8, P: 512, R: 512},
)
