"""Safe RLHF: a cost model, a Lagrange multiplier that is a role of its own, and a loss on pretraining text."""

from collections.abc import Iterator
from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, Execute, Metric, f32, i64, register
from tests.corpus.vocabulary import (
    TOKENS,
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
    Sequences,
    Values,
    prompts_of,
)
from tests.corpus.vocabulary import Actor as Policy


class X(hf.Dim):
    """Rows of pretraining text."""


class W(hf.Dim):
    """Its words."""


class Text(hf.Batch):
    words: i64[X, W]


class Costs(hf.Batch):
    cost: f32[B]


class CostEstimates(hf.Batch):
    cost_advantages: f32[B, R]


class MeanCost(hf.Batch):
    mean_cost: Metric[float, Literal["mean"]]


class Actor(Policy):
    @register(Dispatch.THREE_D_PROTO)
    def pretrain_loss(self, text: Text) -> ActorMetrics:
        return ActorMetrics(loss=float(self.table[text.words.tensor].mean()))


class CostModel(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def cost(self, sequences: Sequences) -> Costs:
        return Costs(cost=(sequences.ids.tensor == 7).float().mean(1))


class Multiplier(hf.Worker):
    """The Lagrange multiplier: one number, on one rank."""

    def __init__(self, budget: float) -> None:
        self.budget, self.value = budget, 1.0

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    def step(self, cost: MeanCost) -> float:
        self.value = max(0.0, self.value + 0.1 * (cost.mean_cost.value - self.budget))
        return self.value


@hf.function(rows=hf.Whole)
def mean_cost(costs: Costs) -> MeanCost:
    return MeanCost(mean_cost=float(costs.cost.tensor.mean()))


@hf.function
def lagrangian(rollout: Rollout, scores: Scores, costs: Costs, values: Values, multiplier: float) -> Estimates:
    gain = (scores.reward.tensor - multiplier * costs.cost.tensor) / (1 + multiplier)
    returns = gain[:, None] * rollout.response_mask.tensor
    return Estimates(advantages=returns - values.values.tensor, returns=returns)


@hf.dataflow
def program(
    prompts: Prompts, text: Text, actor: Actor, critic: Critic, reward: Reward, cost: CostModel, multiplier: Multiplier
) -> tuple[ActorMetrics, ActorMetrics, CriticMetrics]:
    rollout = actor.generate(prompts)
    costs = cost.cost(rollout)
    factor = multiplier.step(mean_cost(costs))
    estimates = lagrangian(rollout, reward.score(rollout), costs, critic.values(rollout), factor)
    return actor.update(rollout, estimates), actor.pretrain_loss(text), critic.update(rollout, estimates)


def batches() -> Iterator[tuple[Prompts, Text]]:
    import torch

    for prompts in prompts_of(8)():
        yield prompts, Text(words=torch.arange(20).view(4, 5) % TOKENS)


pool, config = hf.ResourcePool([4]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
        critic=hf.place(Critic, config, 1, pool=pool),
        reward=hf.place(Reward, pool=pool),
        cost=hf.place(CostModel, pool=pool),
        multiplier=hf.place(Multiplier, budget=0.1, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 8, P: 3, R: 4, X: 4, W: 5},
    batches=batches,
)
