# mypy: disable-error-code="empty-body"
"""Two trainable models: a proposer writes what a solver answers, and both learn from the same rewards."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.programs.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    Reward,
    Rollout,
    Scores,
)


class Tasks(hf.Batch):
    seed: hf.i64[B]


class Proposer(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def propose(self, tasks: Tasks) -> Prompts: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, prompts: Prompts, scores: Scores) -> ActorMetrics: ...


@hf.function
def solved(rollout: Rollout, scores: Scores) -> Advantages: ...


@hf.dataflow
def program(
    tasks: Tasks, proposer: Proposer, solver: Actor, reference: Reference, reward: Reward
) -> list[ActorMetrics]:
    prompts = proposer.propose(tasks)
    rollout = solver.generate(prompts)
    scores = reward.score(rollout)
    updated = solver.update(rollout, reference.log_probs(rollout), solved(rollout, scores))
    return [proposer.update(prompts, scores), updated]


left, right = hf.ResourcePool([8]).split([4, 4])
deployment = hf.Deployment(
    proposer=hf.place(Proposer, pool=left, mesh=hf.Mesh(dp=2, tp=2)),
    solver=hf.place(Actor, PolicyConfig(), pool=right, mesh=hf.Mesh(dp=4)),
    reference=hf.place(Reference, PolicyConfig(), pool=right, colocate=False),
    reward=hf.place(Reward, pool=left),
)
dims = {B: 16, P: 32, R: 32}
