"""Four models share the GPUs of one pool, each in processes of its own."""

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
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)


@hf.function
def gae(rollout: Rollout, ref: RefLogProbs, scores: Scores, values: Values, lam: float = 0.95) -> Estimates:
    import torch

    rewards = 0.01 * (ref.ref_log_probs.tensor - rollout.log_probs.tensor)
    rewards[:, -1] += scores.reward.tensor
    v = values.values.tensor
    steps = rewards + torch.cat([v[:, 1:], torch.zeros_like(v[:, :1])], dim=1) - v
    weights = lam ** torch.arange(v.shape[1]).float()
    later = [(steps[:, i:] * weights[: v.shape[1] - i]).sum(1) for i in range(v.shape[1])]
    advantages = torch.stack(later, dim=1)
    return Estimates(advantages=advantages, returns=advantages + v)


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, critic: Critic, reference: Reference, reward: Reward
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    estimates = gae(rollout, reference.log_probs(rollout), reward.score(rollout), critic.values(rollout), lam=0.9)
    return actor.update(rollout, estimates), critic.update(rollout, estimates)


pool, config = hf.ResourcePool([4]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool, mesh=hf.Mesh(dp=2, tp=2), colocate=False),
        critic=hf.place(Critic, config, pool=pool, colocate=False),
        reference=hf.place(Reference, config, pool=pool, mesh=hf.Mesh(tp=4), colocate=False),
        reward=hf.place(Reward, pool=pool, colocate=False),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
