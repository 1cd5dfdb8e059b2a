"""Both sides state their parameters and hold all of them; the engine computes in another dtype."""

import hfdsl as hf
from hfdsl.protocols.layouts import Layout, Parameter, Replicas
from tests.corpus.advantages import gained
from tests.corpus.vocabulary import ActorMetrics, B, Learner, P, PolicyConfig, Prompts, R, Reward, prompts_of
from tests.corpus.vocabulary import Engine as Undeclared

TABLE = Parameter("table", (8, 8), "float32")


class Trainer(Learner):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"policy": [TABLE]}

    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy", layout=Replicas())
    def weights(self) -> list[list[float]]:
        return super().weights()


def engine_layout(mesh: hf.Mesh, *arguments: object) -> Layout:
    return Replicas()


class Engine(Undeclared):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("table", (8, 8), "bfloat16")]}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=engine_layout)
    def load(self, weights: list[list[float]]) -> None:
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)
    return metrics


def experiment_of(
    engine: type[Engine], *arguments: object, mesh: hf.Mesh | None = None, trainer: type[Trainer] = Trainer
) -> hf.Experiment:
    ranks = 2 if mesh is None else mesh.world_size
    return hf.Experiment(
        program,
        hf.Deployment(
            trainer=hf.place(trainer, PolicyConfig(), pool=hf.ResourcePool([2], name="train")),
            engine=hf.place(engine, *arguments, pool=hf.ResourcePool([ranks], name="engines"), mesh=mesh),
            reward=hf.place(Reward, pool=hf.ResourcePool([1], name="reward")),
        ),
        dims={B: 8, P: 3, R: 4},
        batches=prompts_of(8),
    )


experiment = experiment_of(Engine, PolicyConfig())
