"""An algorithm of one's own: a loss, a function of advantages, and the dataflow that connects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Advantages, Experience, Outcome, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome
from hfdsl.rl.losses import PolicyLoss
from hfdsl.rl.workers import Actor, Reward

if TYPE_CHECKING:
    import torch


@hf.corrects("policy", lag=8)  # it divides by the log-probs that the tokens were sampled with
@dataclass(frozen=True, slots=True)
class Quadratic(PolicyLoss):
    """A parabola in place of a clip: -(ratio * A - |A| * (ratio - 1)**2 / (2 * epsilon)).

    Its gradient is that of the policy gradient at ratio 1, falls along a line, and vanishes where a clip would begin,
    at 1 + epsilon for A > 0 and 1 - epsilon for A < 0; beyond that it leads back (Xie et al., 2024, Simple Policy
    Optimization, equation 9).
    """

    epsilon: Annotated[float, hf.Within(above=0)] = 0.2
    """The distance from 1 at which the gradient vanishes."""

    def surrogate(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each token, and 1 where the gradient leads back; all f32[B, R]."""
        ratio = (log_probs - old_log_probs).exp()
        loss = advantages.abs() * (ratio - 1) ** 2 / (2 * self.epsilon) - ratio * advantages
        return loss, ((ratio - 1) * advantages.sign() > self.epsilon).float()


@hf.function(rows=hf.GroupedBy("group"))
def advantages_over_mean(rollout: Rollout, scores: Scores, *, group: int) -> Advantages:
    """Each score above the mean of its group, at every token of the response."""
    groups = scores.score.tensor.view(-1, group)
    advantage = (groups - groups.mean(1, keepdim=True)).flatten()
    return Advantages(advantage=advantage[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def simple_grpo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    *,
    group: int = 8,
    updates: int = 2,
    loss: Quadratic = Quadratic(),
) -> tuple[ActorMetrics, Outcome]:
    """One step: sample, score, compare, and learn."""
    questions = hf.repeat(prompts, group)
    rollout = actor.generate(questions)
    scores = reward.score(questions, rollout)
    advantages = advantages_over_mean(rollout, scores, group=group)
    parts = hf.minibatches(hf.merge(Experience, rollout, advantages), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)
