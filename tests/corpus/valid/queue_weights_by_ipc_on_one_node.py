"""The engine has GPUs of its own on the node of the learner, whose weights go by CUDA IPC."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scored,
    gains,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


train, serve = hf.ResourcePool([8]).split([4, 4])
config = PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train, transport="cuda ipc"),
    engine=hf.place(Engine, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
)
experiment = hf.Experiment(program, places, dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
