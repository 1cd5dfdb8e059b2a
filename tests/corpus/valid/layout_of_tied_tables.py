"""The engine has its table under two names, and says that they are one."""

import hfdsl as hf
from hfdsl.protocols.layouts import Parameter, Replicas, Tied
from tests.corpus.valid.layout_of_whole_tables import TABLE, Engine, experiment_of
from tests.corpus.vocabulary import PolicyConfig


class TiedEngine(Engine):
    @staticmethod
    def state_parameters(config: PolicyConfig) -> dict[str, list[Parameter]]:
        return {"policy": [TABLE, Parameter("head", (8, 8), "float32")]}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Tied(Replicas(), {"head": "table"}))
    def load(self, weights: list[list[float]]) -> None:
        super().load(weights)


experiment = experiment_of(TiedEngine, PolicyConfig())
