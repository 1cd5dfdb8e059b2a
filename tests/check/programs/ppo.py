# mypy: disable-error-code="empty-body"
"""PPO: a critic, token-level rewards, and generalized advantage estimation in a function."""

import hfdsl as hf
from tests.check.programs.vocabulary import (
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
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    Values,
)


@hf.function
def gae(rollout: Rollout, ref: RefLogProbs, scores: Scores, values: Values, lam: float = 0.95) -> Estimates: ...


@hf.function(rows=hf.Whole)
def whiten(estimates: Estimates) -> Estimates: ...


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, critic: Critic, reference: Reference, reward: Reward
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    values = critic.values(rollout)
    ref = reference.log_probs(rollout)
    estimates = whiten(gae(rollout, ref, reward.score(rollout), values, lam=0.9))
    return actor.update(rollout, ref, estimates), critic.update(rollout, values, estimates)


pool = hf.ResourcePool([8])
config = PolicyConfig(mini_batch=32)
deployment = hf.Deployment(
    actor=hf.place(Actor, config, pool=pool, mesh=hf.Mesh(pp=2, dp=2, tp=2)),
    critic=hf.place(Critic, config, pool=pool, mesh=hf.Mesh(dp=4, tp=2)),
    reference=hf.place(Reference, config, pool=pool, mesh=hf.Mesh(dp=2, tp=4)),
    reward=hf.place(Reward, pool=pool),
)
dims = {B: 128, P: 256, R: 1024}
