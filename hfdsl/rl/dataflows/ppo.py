"""PPO for language models: a critic, generalized advantage estimates, a penalty on the KL to the reference.

Schulman et al., 2017, Proximal Policy Optimization Algorithms; Ouyang et al., 2022, Training Language Models to Follow
Instructions with Human Feedback (InstructGPT).
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorCriticExperience, ActorMetrics, CriticMetrics, Outcome, Prompts
from hfdsl.rl.fields import NonNegative, Share
from hfdsl.rl.functions import kl_penalized_rewards, outcome, whitened_advantages
from hfdsl.rl.losses import Clip, ClippedValue
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Critic, Reference, Reward, Sampler


@hf.dataflow
def ppo(
    prompts: Prompts,
    actor: Actor,
    critic: Critic,
    reference: Reference,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    epochs: int = 2,
    mini_batches: int = 2,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    kl: NonNegative = 0.05,
    loss: Clip = Clip(0.2),
    value_loss: ClippedValue = ClippedValue(0.2),
) -> tuple[ActorMetrics, CriticMetrics, Outcome]:
    """One step of PPO."""
    rollout = sample(prompts, actor, synced(actor, sampler))
    values = critic.values(rollout)
    ref = reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    estimates = whitened_advantages(
        rollout, kl_penalized_rewards(rollout, ref, scores, kl=kl), values, gamma=gamma, lam=lam
    )
    parts = hf.minibatches(hf.merge(ActorCriticExperience, rollout, values, estimates, ref), mini_batches) * epochs
    critic_metrics = [critic.update(part, loss=value_loss) for part in parts]
    actor_metrics = [actor.update(part, loss=loss) for part in parts]
    return actor_metrics[-1], critic_metrics[-1], outcome(rollout, scores)
