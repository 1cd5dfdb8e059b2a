"""Responses keep their own lengths from the engine to the update: nothing is padded on the way, and groups compare."""

from typing import TYPE_CHECKING

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from tests.corpus.vocabulary import (
    TOKENS,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Scores,
    Table,
    prompts_of,
)

if TYPE_CHECKING:
    import torch

GROUP, END = 2, 7


class Answers(hf.Batch):
    prompt_ids: i64[B, P]
    response: i64[B, hf.Ragged[R]]
    log_probs: f32[B, hf.Ragged[R]]


class TokenAdvantages(hf.Batch):
    advantages: f32[B, hf.Ragged[R]]


class Policy(Table):
    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Answers:
        import torch

        responses: list[torch.Tensor] = []
        for row, draws in zip(prompts.ids.tensor, hf.current_call().uniforms(self.config.response), strict=True):
            tokens = [int(row[-1])]
            for draw in draws:
                chances = self.table[tokens[-1]].softmax(-1).cumsum(-1)
                tokens.append(min(int((chances < draw).sum()), TOKENS - 1))
                if tokens[-1] == END:
                    break
            responses.append(torch.tensor(tokens[1:]))
        log_probs = [self.chances(row[-1:], tokens) for row, tokens in zip(prompts.ids.tensor, responses, strict=True)]
        return Answers(prompt_ids=prompts.ids, response=i64(responses), log_probs=f32(log_probs))

    @register(Dispatch.THREE_D_PROTO)
    def update(self, answers: Answers, weights: TokenAdvantages) -> ActorMetrics:
        import torch

        step, loss = torch.zeros_like(self.table), 0.0
        for last, response, advantages in zip(
            answers.prompt_ids.tensor[:, -1:], answers.response.rows, weights.advantages.rows, strict=True
        ):
            step.index_put_((torch.cat([last, response[:-1]]), response), advantages, accumulate=True)
            loss -= float((self.chances(last, response) * advantages).sum())
        self.move(step)
        return ActorMetrics(loss=loss)

    def chances(self, last: "torch.Tensor", response: "torch.Tensor") -> "torch.Tensor":
        import torch

        before = torch.cat([last, response[:-1]])
        return self.table[before].log_softmax(-1).gather(-1, response[:, None])[:, 0]


class Verifier(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, response: i64[B, hf.Ragged[R]]) -> Scores:
        import torch

        return Scores(reward=torch.tensor([float(row[-1] == END) + len(row) / 10 for row in response.rows]))


@hf.function(rows=hf.Grouped(GROUP))
def over_group(scores: Scores, answers: Answers) -> TokenAdvantages:
    import torch

    rewards = scores.reward.tensor.view(-1, GROUP)
    centered = (rewards - rewards.mean(1, keepdim=True)).flatten()
    rows = [torch.full_like(row, float(gain)) for gain, row in zip(centered, answers.log_probs.rows, strict=True)]
    return TokenAdvantages(advantages=f32(rows))


@hf.dataflow
def program(prompts: Prompts, policy: Policy, verifier: Verifier) -> list[ActorMetrics]:
    answers = policy.generate(hf.repeat(prompts, GROUP))
    advantages = over_group(verifier.score(answers.response), answers)
    halves = zip(hf.minibatches(answers, 2), hf.minibatches(advantages, 2), strict=True)
    return [policy.update(part, weights) for part, weights in halves]


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
        verifier=hf.place(Verifier, pool=hf.ResourcePool([3], use_gpu=False)),
    ),
    dims={B: 6, P: 3, R: 4},
    batches=prompts_of(6),
)
