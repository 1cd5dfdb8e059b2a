# mypy: disable-error-code="empty-body"
"""Each of 4 ranks has one completion, and a role on these ranks compares groups of 8.

Seen: https://github.com/huggingface/trl/issues/3061
Elsewhere: TRL refuses the sizes in its constructor; users ask why, since the message does not mention ranks.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Advantages, B, P, Prompts, R, Rollout


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate(self, completions: Prompts) -> Rollout: ...

    @register(Dispatch.DP_PROTO, rows=hf.Grouped(8))
    def compute_advantages(self, rollout: Rollout) -> Advantages: ...


@hf.dataflow
def grpo(completions: Prompts, trainer: Trainer) -> Advantages:
    rollout = trainer.generate(completions)
    return trainer.compute_advantages(rollout)  # <- HF313


experiment = hf.Experiment(
    grpo, hf.Deployment(trainer=hf.place(Trainer, pool=hf.ResourcePool([4]))), dims={B: 4, P: 256, R: 256}
)
