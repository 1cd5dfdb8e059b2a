from collections.abc import Iterator
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register

VOCABULARY, GROUP = 8, 5


class B(hf.Dim):
    """Rows: one prompt, or one prompt with its response."""


class T(hf.Dim):
    """Tokens of a prompt, and of a response."""


class Prompts(hf.Batch):
    tokens: i64[B, T]


class Answers(Prompts):
    response: i64[B, T]


class Rollout(Answers):
    log_probs: f32[B, T]


class Scores(hf.Batch):
    reward: f32[B]


class Advantages(hf.Batch):
    advantage: f32[B]


class Experience(Rollout):
    advantage: f32[B]


class Metrics(hf.Batch):
    reward: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    def __init__(self, learning_rate: float) -> None:
        self.policy = torch.nn.Embedding(VOCABULARY, VOCABULARY)  # a token's answer, as logits
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=learning_rate)

    def log_softmax(self, prompts: Prompts) -> torch.Tensor:
        logits: torch.Tensor = self.policy(prompts.tokens.tensor)
        return logits.log_softmax(-1)

    @register(Dispatch.DP_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        with torch.no_grad():
            log_probs = self.log_softmax(prompts)
        draws = hf.current_call().uniforms(log_probs.shape[1])
        response = (log_probs.exp().cumsum(-1) < draws[..., None]).sum(-1).clamp(max=VOCABULARY - 1)
        token_log_probs = log_probs.gather(-1, response[..., None])[..., 0]
        return Rollout(tokens=prompts.tokens, response=response, log_probs=token_log_probs)

    @register(Dispatch.DP_PROTO)
    def update(self, experience: Experience) -> None:
        now = self.log_softmax(experience).gather(-1, experience.response.tensor[..., None])[..., 0]
        ratio = (now - experience.log_probs.tensor).exp()
        loss = -(ratio * experience.advantage.tensor[:, None]).mean()
        [gradient] = torch.autograd.grad(loss, [self.policy.weight])
        self.policy.weight.grad = self.axis("dp").all_reduce(gradient, "mean")
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])


class Reward(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, answers: Answers) -> Scores:
        return Scores(reward=(answers.response.tensor == answers.tokens.tensor).float().mean(1))


@hf.function(rows=hf.Grouped(GROUP))
def group_advantages(scores: Scores) -> Advantages:
    groups = scores.reward.tensor.view(-1, GROUP)
    return Advantages(advantage=(groups - groups.mean(1, keepdim=True)).flatten())


@hf.function(rows=hf.Whole)
def summary(scores: Scores) -> Metrics:
    return Metrics(reward=float(scores.reward.tensor.mean()))


@hf.dataflow
def grpo(prompts: Prompts, actor: Actor, reward: Reward) -> Metrics:
    rollout = actor.generate(hf.repeat(prompts, GROUP))
    scores = reward.score(rollout)
    actor.update(hf.merge(Experience, rollout, group_advantages(scores)))
    return summary(scores)


train = hf.ResourcePool([2], use_gpu=False, name="train")
verify = hf.ResourcePool([1], use_gpu=False, name="verify")
deployment = hf.Deployment(
    actor=hf.place(Actor, learning_rate=0.3, pool=train),
    reward=hf.place(Reward, pool=verify),
)
sizes = {B: 16, T: 4}


def batches() -> Iterator[Prompts]:
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        yield Prompts(tokens=torch.randint(VOCABULARY, (16, 4), generator=draw))


experiment = hf.Experiment(grpo, deployment, sizes, batches=batches, seed=1)


if __name__ == "__main__":
    print(grpo.check(deployment, sizes))
    plan = grpo.compile(deployment, sizes)
    print(plan)
    with plan.launch(backend="local", seed=1) as running:
        for step, prompts in enumerate(batches()):
            metrics = running.step(prompts)
            print(f"step {step}: reward {metrics.reward.value:.2f}")
