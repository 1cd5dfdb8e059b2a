# mypy: disable-error-code="empty-body"
"""Every process generates for the same 64 prompts, and all of the outputs are joined.

Seen: https://github.com/hpcaitech/ColossalAI/issues/5066
Elsewhere: silent: each process holds and trains the same 64 rows, and no parallelism is left in generation.
"""

import hfdsl as hf
from hfdsl import register
from tests.corpus.vocabulary import B, P, Prompts, R, Rollout

EVERYWHERE = hf.Protocol("EVERYWHERE", split=(), collect={"dp": "join", "pp": "last", "tp": "first"})


class ExperienceMaker(hf.Worker):
    @register(EVERYWHERE)
    def generate(self, prompts: Prompts) -> Rollout: ...


@hf.dataflow
def collect(prompts: Prompts, maker: ExperienceMaker) -> Rollout:
    return maker.generate(prompts)  # <- HF405


experiment = hf.Experiment(
    collect, hf.Deployment(maker=hf.place(ExperienceMaker, pool=hf.ResourcePool([4]))), dims={B: 64, P: 96, R: 256}
)
