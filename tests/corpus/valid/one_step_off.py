"""One step off-policy: the engine gets the weights before a step updates them, so it always lacks the last update."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import (
    Actor,
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


class Trainer(Actor):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics:
        return super().update(rollout, advantages)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[list[float]]:
        rows: list[list[float]] = self.table.tolist()
        return rows


class Engine(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy", staleness=1)
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
    hf.sync(trainer, engine)
    return trainer.learn(rollout, gained(reward.score(rollout), rollout))


config = PolicyConfig()
train, serve = hf.ResourcePool([6]).split([4, 2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, config, pool=train),
        engine=hf.place(Engine, config, pool=serve),
        reward=hf.place(Reward, pool=serve),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
