"""Self-play with an engine for each of two trained policies: each engine gets the weights of its own side."""

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


class Player(Actor):
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
    @hf.reads("policy")
    def move_first(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:
        import torch

        self.table = torch.tensor(weights)


@hf.function
def won(mine: Scores, theirs: Scores, rollout: Rollout) -> Advantages:
    ahead = (mine.reward.tensor - theirs.reward.tensor).sign()
    return Advantages(advantages=ahead[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(
    prompts: Prompts, white: Player, black: Player, white_engine: Engine, black_engine: Engine, judge: Reward
) -> dict[str, ActorMetrics]:
    first, second = white_engine.move_first(prompts), black_engine.move_first(prompts)
    of_first, of_second = judge.score(first), judge.score(second)
    updates = {
        "white": white.learn(first, won(of_first, of_second, first)),
        "black": black.learn(second, won(of_second, of_first, second)),
    }
    hf.sync(white, white_engine)
    hf.sync(black, black_engine)
    return updates


config = PolicyConfig()
left, right, serve = hf.ResourcePool([2]), hf.ResourcePool([4]), hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        white=hf.place(Player, config, pool=left),
        black=hf.place(Player, config, pool=right, mesh=hf.Mesh(dp=2, tp=2)),
        white_engine=hf.place(Engine, config, pool=serve),
        black_engine=hf.place(Engine, config, pool=serve),
        judge=hf.place(Reward, pool=left),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
