# mypy: disable-error-code="empty-body"
"""Pass@3 in validation: 3 responses per prompt are scored against answers that exist once.

Seen: https://github.com/hiyouga/EasyR1/issues/247
Elsewhere: a ValueError in the driver at the first validation, after generation.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout, Scores

N = 3


class Answers(hf.Batch):
    answer: hf.Obj[str, B]


class Questions(Prompts, Answers):
    """Prompts with their answers."""


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def compare(self, rollout: Rollout, answers: Answers) -> Scores: ...


@hf.function(rows=hf.Grouped(N))
def best_of_group(scores: Scores) -> Scores: ...


@hf.dataflow
def pass_at_3(prompts: Questions, engine: Engine, judge: Judge) -> Scores:
    rollout = engine.generate(hf.repeat(prompts, N))
    return best_of_group(judge.compare(rollout, prompts))  # <- HF212


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    pass_at_3,
    hf.Deployment(engine=hf.place(Engine, pool=pool), judge=hf.place(Judge, pool=pool)),
    dims={B: 100, P: 2048, R: 2048},
)
