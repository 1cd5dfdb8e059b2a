# mypy: disable-error-code="empty-body"
"""The evaluation set lacks the ground truth that the evaluation's reward needs.

Seen: https://github.com/PRIME-RL/TTRL/issues/20
Elsewhere: a KeyError in the reward manager at the first validation, after its generation.
"""

from typing import Any

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores


class Graded(Rollout):
    reward_model: hf.Obj[dict[str, Any], B]


@hf.function
def eval_reward(graded: Graded) -> Scores: ...


@hf.dataflow
def validate(prompts: Prompts, actor: Actor) -> Scores:
    rollout = actor.generate(prompts)
    return eval_reward(hf.merge(Graded, rollout))  # <- HF204


experiment = hf.Experiment(
    validate,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([8]))),
    dims={B: 30 * 8, P: 512, R: 3072},
)
