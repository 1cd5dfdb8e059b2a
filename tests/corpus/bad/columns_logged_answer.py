# mypy: disable-error-code="empty-body, attr-defined"
"""The log after each step reads a column 'answer' that this program's batches do not have.

Seen: https://github.com/huggingface/trl/pull/708
Elsewhere: a KeyError in log_stats after the first PPO step has been taken.
"""

from typing import Literal

import hfdsl as hf
from hfdsl import Dispatch, i64, register
from tests.corpus.vocabulary import B, P, R, Reward, Rollout, Scores


class Queries(hf.Batch):
    ids: i64[B, P]
    query: hf.Obj[str, B]


class Table(hf.Batch):
    rows: hf.Metric[int, Literal["sum"]]


class Policy(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def respond(self, queries: Queries) -> Rollout: ...

    @register(Dispatch.DP_PROTO)
    def step(self, rollout: Rollout, scores: Scores) -> None: ...


@hf.function(rows=hf.Whole)
def log_stats(query: hf.Obj[str, B], answer: hf.Obj[str, B], scores: Scores) -> Table: ...


@hf.dataflow
def ppo(queries: Queries, policy: Policy, reward: Reward) -> Table:
    rollout = policy.respond(queries)
    scores = reward.score(rollout)
    policy.step(rollout, scores)
    return log_stats(queries.query, queries.answer, scores)  # <- HF201


pool = hf.ResourcePool([1])
experiment = hf.Experiment(
    ppo,
    hf.Deployment(policy=hf.place(Policy, pool=pool), reward=hf.place(Reward, pool=pool)),
    dims={B: 16, P: 64, R: 64},
)
