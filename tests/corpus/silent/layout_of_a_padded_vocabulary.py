"""The engine pads its vocabulary to 12 tokens, and takes the first rows of the pad for tokens."""

import hfdsl as hf
from hfdsl.protocols.layouts import Parameter
from tests.corpus.advantages import gained
from tests.corpus.valid.layout_of_whole_tables import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class Padded(Engine):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("table", (12, 8), "float32")]}


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: Padded, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)  # <- HF732
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(Padded, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
