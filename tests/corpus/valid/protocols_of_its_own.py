"""A declared protocol that splits over tensor ranks, too, and a pair of functions that averages an ensemble."""

from typing import Any

import hfdsl as hf
from hfdsl import register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Scores, Sequences, prompts_of

EVERY_GPU = hf.Protocol("EVERY_GPU", split=("dp", "tp"), collect={"dp": "join", "tp": "join", "pp": "last"})


def to_all(group: Any, *args: Any, **kwargs: Any) -> Any:
    n = group.world_size
    return tuple([value] * n for value in args), {name: [value] * n for name, value in kwargs.items()}


def averaged(group: Any, outputs: list[Scores]) -> Scores:
    import torch

    return Scores(reward=torch.stack([output.reward.tensor for output in outputs]).mean(0))


class Ensemble(hf.Worker):
    @register(EVERY_GPU)
    def quick(self, sequences: Sequences) -> Scores:
        return Scores(reward=sequences.ids.tensor.float().mean(1))

    @register({"dispatch_fn": to_all, "collect_fn": averaged})
    def vote(self, sequences: Sequences) -> Scores:
        return Scores(reward=sequences.ids.tensor.float().mean(1) + self.rank)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, ensemble: Ensemble) -> tuple[Scores, Scores]:
    rollout = actor.generate(prompts)
    return ensemble.quick(rollout), ensemble.vote(rollout)


pool = hf.ResourcePool([8])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        ensemble=hf.place(Ensemble, pool=pool, mesh=hf.Mesh(pp=2, dp=2, tp=2)),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
