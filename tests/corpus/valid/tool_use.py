"""Conversations with tools: nothing but Python objects in the columns, and two rounds of a loop that unrolls."""

from collections.abc import Iterator

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import B

ROUNDS = 2


class Conversations(hf.Batch):
    messages: hf.Obj[list[str], B]
    tools: hf.Obj[dict[str, int], B]


class Answers(hf.Batch):
    answer: hf.Obj[str, B]


class Model(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def reply(self, conversations: Conversations) -> Conversations:
        said = [[*messages, f"call tool {len(messages)}"] for messages in conversations.messages.objects]
        return Conversations(messages=said, tools=conversations.tools.objects)


class Sandbox(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def call(self, conversations: Conversations) -> Conversations:
        used = [{name: n + 1 for name, n in tools.items()} for tools in conversations.tools.objects]
        said = [[*messages, "result"] for messages in conversations.messages.objects]
        return Conversations(messages=said, tools=used)


@hf.function
def last(conversations: Conversations) -> Answers:
    return Answers(answer=[messages[-1] for messages in conversations.messages.objects])


@hf.dataflow
def program(conversations: Conversations, model: Model, sandbox: Sandbox) -> tuple[Answers, Conversations]:
    for _ in range(ROUNDS):
        conversations = sandbox.call(model.reply(conversations))
    return last(conversations), conversations


def batches() -> Iterator[Conversations]:
    yield Conversations(messages=[[f"question {i}"] for i in range(6)], tools=[{"search": 0} for _ in range(6)])


experiment = hf.Experiment(
    program,
    hf.Deployment(
        model=hf.place(Model, pool=hf.ResourcePool([2])),
        sandbox=hf.place(Sandbox, pool=hf.ResourcePool([4], use_gpu=False)),
    ),
    dims={B: 6},
    batches=batches,
)
