# mypy: disable-error-code="empty-body"
"""A runner's loop tests a value of the graph to decide whether there have been enough episodes.

Seen: https://github.com/tensorforce/tensorforce/issues/272
Elsewhere: TensorFlow raises a TypeError when the loop gets there, after the agent and its environment have been built.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import B


class States(hf.Batch):
    state: f32[B]


class Episodes(hf.Batch):
    reward: f32[B]
    finished: f32[B]


class Agent(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def act(self, states: States) -> Episodes: ...

    @register(Dispatch.DP_PROTO)
    def observe(self, episodes: Episodes) -> None: ...


@hf.dataflow
def run(states: States, agent: Agent) -> Episodes:
    episodes = agent.act(states)
    if episodes.finished:  # <- HF207
        agent.observe(episodes)
    return episodes


experiment = hf.Experiment(run, hf.Deployment(agent=hf.place(Agent, pool=hf.ResourcePool([1]))), dims={B: 20})
