"""The policy samples itself; an engine with frozen weights is its opponent."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import above
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Rollout, prompts_of


class Solver(Trainer):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def answer(self, prompts: Prompts) -> Rollout:
        return super().generate(prompts)


@hf.dataflow
def program(prompts: Prompts, trainer: Solver, frozen: Trainer, opponent: Engine, reward: Reward) -> ActorMetrics:
    rollout = trainer.answer(prompts)
    scores = reward.score(rollout)
    metrics = trainer.learn(rollout, above(scores, reward.score(opponent.answer(prompts)), rollout))
    hf.sync(frozen, opponent)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Solver, PolicyConfig(), pool=pool),
        frozen=hf.place(Trainer, PolicyConfig(), pool=pool),
        opponent=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
