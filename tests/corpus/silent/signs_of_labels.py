"""The labels of good and bad answers are exchanged, so that a policy learns the bad ones."""

from collections.abc import Iterator

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, i64, register
from tests.corpus.learners import LearnerMetrics
from tests.corpus.preferences import Preferring
from tests.corpus.vocabulary import TOKENS, B, P, PolicyConfig, R, T


class Answers(hf.Batch):
    ids: i64[B, T]
    desirable: bool_[B]
    ref: f32[B]


class Policy(Preferring):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def learn(self, answers: Answers) -> LearnerMetrics:
        import torch

        gaps = self.log_probs(answers.ids.tensor) - answers.ref.tensor
        baseline = gaps.detach().mean().clamp(min=0)
        good = 1 - torch.sigmoid(self.beta * (gaps - baseline))
        bad = 1 - torch.sigmoid(self.beta * (baseline - gaps))
        loss = torch.where(answers.desirable.tensor, bad, good).mean()  # <- HF368
        return self.descend(loss)


def answers() -> Iterator[Answers]:
    import torch

    ids = torch.arange(56).view(8, 7) % TOKENS
    yield Answers(ids=ids, desirable=torch.arange(8) % 2 == 0, ref=torch.zeros(8))


@hf.dataflow
def program(answers: Answers, actor: Policy) -> LearnerMetrics:
    return actor.learn(answers)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Policy, PolicyConfig(), pool=hf.ResourcePool([2]))),
    dims={B: 8, P: 3, R: 4},
    batches=answers,
)
