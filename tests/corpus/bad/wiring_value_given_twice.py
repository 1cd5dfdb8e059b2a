# mypy: disable-error-code="empty-body, misc"
"""A formatting reward gets its completions by position and by name.

Seen: https://github.com/huggingface/trl/issues/4825
Elsewhere: a TypeError for multiple values of 'completions' four minutes into the run, in the first reward computation.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores


@hf.function
def formatting_reward(completions: Rollout, strict: bool = False) -> Scores: ...


@hf.dataflow
def grpo(prompts: Prompts, policy: Actor) -> Scores:
    completions = policy.generate(prompts)
    return formatting_reward(completions, completions=completions)  # <- HF202


experiment = hf.Experiment(
    grpo,
    hf.Deployment(policy=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([1]))),
    dims={B: 8, P: 512, R: 512},
)
