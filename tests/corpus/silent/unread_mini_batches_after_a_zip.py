"""The critic has half as many mini-batches as the actor: zip ends with them, and half of the actor's are left out."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    gains,
    prompts_of,
)


@hf.function
def estimated(scores: Scores, rollout: Rollout) -> Estimates:
    returns = scores.reward.tensor[:, None] * rollout.response_mask.tensor
    return Estimates(advantages=returns, returns=returns)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> list[tuple[ActorMetrics, CriticMetrics]]:
    rollout = actor.generate(prompts)
    scores = reward.score(rollout)
    parts = hf.minibatches(hf.merge(Learned, rollout, scores), 4)  # <- HF602
    targets = hf.minibatches(hf.merge(Learned, rollout, scores), 2)
    return [
        (actor.update(part, gains(part, part)), critic.update(target, estimated(target, target)))
        for part, target in zip(parts, targets, strict=False)
    ]


class Learned(Rollout, Scores): ...


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        critic=hf.place(Critic, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
