"""An engine takes new weights between two tokens, with as many calls at once as the lag allows."""

import hfdsl as hf
from hfdsl import Dispatch, register
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
    Rollout,
    Scored,
    gains,
    prompts_of,
)


class InFlight(Engine):
    @staticmethod
    def concurrent_calls(config: PolicyConfig) -> dict[str, int]:
        """How many calls may be in progress."""
        return {"sample": 2}

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Rollout:
        import torch

        call, count = hf.current_call(), self.config.response
        ids, log_probs = prompts.ids.tensor, list[torch.Tensor]()
        for number, draw in enumerate(call.uniforms(count).T):
            call.take_weights(number, of=count)
            said = self.table[ids[:, -1]].log_softmax(-1)
            token = (said.exp().cumsum(-1) < draw[:, None]).sum(-1, keepdim=True).clamp(max=said.shape[1] - 1)
            log_probs.append(said.gather(-1, token))
            ids = torch.cat([ids, token], dim=1)
        mask = torch.ones(len(ids), count, dtype=torch.bool)
        return Rollout(ids=ids, response_mask=mask, log_probs=torch.cat(log_probs, dim=1))

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", during="sample")
    def load(self, weights: list[list[float]]) -> None:
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: InFlight, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine, during="sample")
    return metrics


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=train),
    engine=hf.place(InFlight, config, pool=serve),
    reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
)
experiment = hf.Experiment(program, places, dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
