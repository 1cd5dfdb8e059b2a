"""A trainer and a generation engine on pools of their own, on other meshes; the weights are sent after each update."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    prompts_of,
)


class Trainer(Policy):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return super().update(rollout, advantages)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        rows: list[list[float]] = self.table.tolist()
        return rows


class Engine(Policy):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def answer(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:
        import torch

        self.table = torch.tensor(weights)


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.answer(prompts)
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)
    return metrics


config = PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, config, pool=hf.ResourcePool([4]), mesh=hf.Mesh(dp=2, tp=2)),
        engine=hf.place(Engine, config, pool=hf.ResourcePool([4]), mesh=hf.Mesh(dp=4)),
        reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
