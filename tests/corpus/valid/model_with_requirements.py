"""A model whose class says what its heads and layers need of a mesh: each rank has the logits of its own tokens."""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    TOKENS,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    Sequences,
    Table,
    prompts_of,
)
from tests.corpus.vocabulary import Actor as Sampler


@dataclass(frozen=True)
class ModelConfig(PolicyConfig):
    heads: int = 8
    layers: int = 6
    vocabulary: int = TOKENS


@hf.requires("heads % tp == 0")
@hf.requires("vocabulary % tp == 0")
@hf.requires("layers % pp == 0")
class VocabularyParallel(Table):
    """Every tensor-parallel rank has the logits of its share of the tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        parts = self.axis("tp")
        share = config.vocabulary // parts.size
        self.tokens = slice(parts.rank * share, (parts.rank + 1) * share)

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, sequences: Sequences) -> RefLogProbs:
        ids = sequences.ids.tensor
        mine = self.said(ids)[..., self.tokens].exp().sum(-1)
        total = self.axis("tp").all_reduce(mine, "sum").log()
        chosen = self.said(ids).gather(-1, ids[:, -self.config.response :, None])[..., 0]
        return RefLogProbs(ref_log_probs=chosen - total)


@hf.function
def penalized(scores: Scores, rollout: Rollout, ref: RefLogProbs) -> Scores:
    kl = (rollout.log_probs.tensor - ref.ref_log_probs.tensor).sum(1)
    return Scores(reward=scores.reward.tensor - 0.1 * kl)


@hf.dataflow
def program(
    prompts: Prompts, engine: Sampler, model: VocabularyParallel, plain: Reference, reward: Reward
) -> tuple[Scores, RefLogProbs]:
    rollout = engine.generate(prompts)
    return penalized(reward.score(rollout), rollout, model.log_probs(rollout)), plain.log_probs(rollout)


pool, config = hf.ResourcePool([12]), ModelConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        engine=hf.place(Sampler, config, pool=pool),
        model=hf.place(VocabularyParallel, config, pool=pool, mesh=hf.Mesh(pp=3, dp=2, tp=2)),
        plain=hf.place(Reference, config, pool=pool, mesh=hf.Mesh(dp=3, tp=4)),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 24, P: 3, R: 4},
    batches=prompts_of(24),
)
