# mypy: disable-error-code="empty-body"
"""The engine's prompts are repeated for the group, but the arguments of their tools are not.

Seen: https://github.com/verl-project/verl/pull/1387
Elsewhere: a batch-size mismatch in the rollout worker, in the first generation of training.
"""

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


class Tools(hf.Batch):
    tools_kwargs: hf.Obj[dict[str, Any], B]


class SglangRollout(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate_with_tools(self, prompts: Prompts, tools: Tools) -> Rollout: ...


@hf.dataflow
def grpo(prompts: Prompts, tools: Tools, engine: SglangRollout) -> Rollout:
    return engine.generate_with_tools(hf.repeat(prompts, 16), tools)  # <- HF212


experiment = hf.Experiment(
    grpo,
    hf.Deployment(engine=hf.place(SglangRollout, pool=hf.ResourcePool([8]))),
    dims={B: 1024, P: 512, R: 1024},
)
