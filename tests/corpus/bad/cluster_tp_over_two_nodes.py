# mypy: disable-error-code="empty-body"
"""Engines with tensor-parallel size 4 are placed on nodes with 6 GPUs, so that one of them spans two nodes.

Seen: https://github.com/allenai/open-instruct/pull/949
Elsewhere: silent: the engine's ranks communicate between nodes in every layer; it was found by chance.
"""

import hfdsl as hf
from tests.corpus.vocabulary import Actor, B, P, PolicyConfig, Prompts, R, Reward, Scores


@hf.dataflow
def rollout(prompts: Prompts, engines: Actor, verifier: Reward) -> Scores:
    return verifier.score(engines.generate(prompts))


engines = hf.ResourcePool([6, 6], name="engines")
experiment = hf.Experiment(
    rollout,
    hf.Deployment(
        engines=hf.place(Actor, PolicyConfig(), pool=engines, mesh=hf.Mesh(dp=3, tp=4)),  # <- HF503
        verifier=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 96, P: 2048, R: 8192},
)
