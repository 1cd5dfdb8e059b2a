"""By an index that is off by one, no rank of the engine loads the last row of the table."""

import hfdsl as hf
from hfdsl.protocols.layouts import Box, Layout, Parameter
from tests.corpus.advantages import gained
from tests.corpus.valid.layout_of_whole_tables import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Halves(Layout):
    def boxes(self, parameter: Parameter, mesh: hf.Mesh, rank: int) -> tuple[Box, ...]:
        rows, half = parameter.shape[0] - 1, rank % 2
        return (((half * rows // 2, (half + 1) * rows // 2), (0, 8)),)


class Sliced(Engine):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("table", (8, 8), "float32")]}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Halves())
    def load(self, weights: list[list[float]]) -> None:
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: Sliced, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)  # <- HF736
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(Sliced, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
