"""The engine has a node of its own, and the weights are to go by CUDA IPC, as they did on a shared one."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, Scored, gains


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


train, serve = hf.ResourcePool([8, 8]).split([8, 8])
config = PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train, transport="cuda ipc"),  # <- HF524
    engine=hf.place(Engine, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
)
experiment = hf.Experiment(program, places, dims={B: 64, P: 512, R: 4})
