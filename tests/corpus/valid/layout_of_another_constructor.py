"""A derived engine takes other arguments than those for which its base class states parameters."""

from tests.corpus.valid.layout_of_whole_tables import Engine, experiment_of
from tests.corpus.vocabulary import PolicyConfig


class WideEngine(Engine):
    def __init__(self, response: int, learning_rate: float) -> None:
        super().__init__(PolicyConfig(response, learning_rate=learning_rate))


experiment = experiment_of(WideEngine, 4, 0.1)
