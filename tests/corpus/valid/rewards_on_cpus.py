"""Three rewards on CPU pools of different sizes are added up in a function; 5 ranks take 20 rows, 4 and 2 as well."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Sequences,
    prompts_of,
)


class Format(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        return Scores(reward=(sequences.ids.tensor[:, -1] == 0).float())


class Length(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, sequences: Sequences) -> Scores:
        return Scores(reward=-0.1 * sequences.response_mask.tensor.float().sum(1))


@hf.function
def summed(rollout: Rollout, a: Scores, b: Scores, c: Scores) -> Advantages:
    total = a.reward.tensor + b.reward.tensor + c.reward.tensor
    return Advantages(advantages=total[:, None] * rollout.response_mask.tensor)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, verifier: Reward, form: Format, length: Length) -> ActorMetrics:
    rollout = actor.generate(prompts)
    scores = verifier.score(rollout), form.score(rollout), length.score(rollout)
    return actor.update(rollout, summed(rollout, *scores))


experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([4])),
        verifier=hf.place(Reward, pool=hf.ResourcePool([5], use_gpu=False)),
        form=hf.place(Format, pool=hf.ResourcePool([2], use_gpu=False)),
        length=hf.place(Length, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 20, P: 3, R: 4},
    batches=prompts_of(20),
)
