"""An engine takes two calls at once, and gets its weights between calls, where each waits for the others."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, Scored, gains


class Concurrent(Engine):
    @staticmethod
    def concurrent_calls(config: PolicyConfig) -> dict[str, int]:
        """How many calls may be in progress."""
        return {"sample": 2}


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Concurrent, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)  # <- HF755
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    engine=hf.place(Concurrent, config, pool=serve),
    reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
)
experiment = hf.Experiment(program, places, dims={B: 64, P: 512, R: 4})
