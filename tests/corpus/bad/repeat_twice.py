# mypy: disable-error-code="empty-body"
"""The validation prompts are repeated before generation, and the engine's prompts once more.

Seen: https://github.com/TIGER-AI-Lab/verl-tool/pull/77
Elsewhere: a size mismatch in the union of tensors in the driver, whatever the number of samples is.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores

VAL_N = 2


@hf.function
def tool_reward(prompts: Prompts, rollout: Rollout) -> Scores: ...


@hf.dataflow
def validate(prompts: Prompts, actor: Actor) -> Scores:
    batch = hf.repeat(prompts, VAL_N)
    rollout = actor.generate(hf.repeat(batch, VAL_N))
    return tool_reward(batch, rollout)  # <- HF212


experiment = hf.Experiment(
    validate,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([4]))),
    dims={B: 16, P: 1024, R: 1024},
)
