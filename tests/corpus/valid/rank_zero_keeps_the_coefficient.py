"""A coefficient lives on rank 0: it is read and changed there, and the other rank has no use for it."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Controller(hf.Worker):
    def __init__(self) -> None:
        self.coefficient = 0.1

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.reads("coefficient")
    def now(self) -> float:
        return self.coefficient

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.writes("coefficient")
    def adapt(self, scores: Scores) -> float:
        self.coefficient *= 1.1 if float(scores.reward.tensor.mean()) > 0.5 else 0.9
        return self.coefficient


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, controller: Controller) -> tuple[float, float]:
    return controller.now(), controller.adapt(reward.score(actor.generate(prompts)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        controller=hf.place(Controller, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
