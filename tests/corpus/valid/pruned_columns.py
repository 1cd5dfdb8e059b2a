"""Ports that take less than what they are given: a base class of a record, twice removed, and optional constants."""

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Rollout, Scores, Sequences, prompts_of


class Weighted(Rollout):
    weight: f32[B]


class Logged(Weighted):
    step: i64[B]


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences, note: str | None = None) -> Scores:
        return Scores(reward=sequences.ids.tensor.float().mean(1))

    @register(Dispatch.DP_PROTO)
    def weigh(self, weighted: Weighted) -> Scores:
        return Scores(reward=weighted.weight.tensor * 2)


@hf.function
def logged(rollout: Rollout, step: int = 0) -> Logged:
    import torch

    rows = len(rollout)
    return Logged(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        log_probs=rollout.log_probs,
        weight=torch.ones(rows),
        step=torch.full((rows,), step),
    )


@hf.dataflow
def program(prompts: Prompts, actor: Actor, trainer: Trainer) -> tuple[Scores, Scores]:
    full = logged(actor.generate(prompts), step=3)
    return trainer.score(full, note=None), trainer.weigh(full)


pool = hf.ResourcePool([3])
experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=pool), trainer=hf.place(Trainer, pool=pool)),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
