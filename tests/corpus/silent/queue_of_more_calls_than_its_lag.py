"""An engine has threads for eight calls at once, and the lag allows two steps in flight."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, Scored, gains


class Concurrent(Engine):
    @staticmethod
    def concurrent_calls(config: PolicyConfig) -> dict[str, int]:
        """How many calls may be in progress."""
        return {"sample": 8}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="sample")
    def load(self, weights: list[list[float]]) -> None:
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Concurrent, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)  # <- HF756
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine, during="sample")
    return metrics


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    engine=hf.place(Concurrent, config, pool=serve),
    reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
)
experiment = hf.Experiment(program, places, dims={B: 64, P: 512, R: 4})
