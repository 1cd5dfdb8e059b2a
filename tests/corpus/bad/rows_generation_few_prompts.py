# mypy: disable-error-code="empty-body"
"""Two prompts are split over four generation workers.

Seen: https://github.com/verl-project/verl/issues/473
Elsewhere: verl's generation script asserts equal chunks at the first dispatch, after the engines have started.
"""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout


class Generator(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def generate_sequences(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def generation(prompts: Prompts, rollout: Generator) -> Rollout:
    return rollout.generate_sequences(prompts)  # <- HF310


experiment = hf.Experiment(
    generation,
    hf.Deployment(rollout=hf.place(Generator, pool=hf.ResourcePool([4]))),
    dims={B: 2, P: 4096, R: 1024},
)
