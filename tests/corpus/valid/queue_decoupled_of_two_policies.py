"""A decoupled loss clips around the current policy, and weights by the log-probs of sampling."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import gained
from tests.corpus.policies import Engine, Policy, ProximalExperience
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, PolicyConfig, Prompts, R, Reward, Scored, prompts_of


class Decoupled(Policy):
    @register(Dispatch.THREE_D_PROTO)
    @hf.corrects("policy", lag=8)
    @hf.writes("policy", ratio="proximal")
    def learn_decoupled(self, experience: ProximalExperience) -> ActorMetrics:
        proximal, gains = experience.proximal.tensor, experience.advantages.tensor
        weight = (proximal - experience.log_probs.tensor).exp().clamp(max=2.0)
        ratio = (self.chosen(experience.ids.tensor) - proximal).exp()
        return self.update(experience, Advantages(advantages=weight * ratio * gains))


@hf.dataflow
def program(prompts: Prompts, policy: Decoupled, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    batch = hf.queue(hf.merge(Scored, rollout, reward.score(rollout)), lag=4, late="wait")
    experience = ProximalExperience(
        ids=batch.ids,
        response_mask=batch.response_mask,
        log_probs=batch.log_probs,
        proximal=policy.log_probs(batch).log_probs,
        advantages=gained(batch, batch).advantages,
    )
    metrics = policy.learn_decoupled(experience)
    hf.sync(policy, engine)
    return metrics


train, serve, config = hf.ResourcePool([4]), hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    policy=hf.place(Decoupled, config, pool=train),
    engine=hf.place(Engine, config, pool=serve),
    reward=hf.place(Reward, pool=serve),
)
experiment = hf.Experiment(program, places, dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
