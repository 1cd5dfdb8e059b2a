"""A reward model's folder, which has no output layer, as a policy."""

import tempfile
from contextlib import chdir

import transformers

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers import Actor, ActorConfig, GenerationConfig, ModelConfig
from tests.rl.workers import tiny


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


settings = transformers.AutoConfig.for_model(**tiny.LLAMA)
# good: kind = transformers.AutoModelForCausalLM
kind = transformers.AutoModelForSequenceClassification  # bad
config = ActorConfig(ModelConfig(path="reward"), GenerationConfig(max_tokens=tiny.RESPONSE))
deployment = hf.Deployment(actor=hf.place(Actor, config, pool=hf.ResourcePool([1])))
with tempfile.TemporaryDirectory() as folder, chdir(folder):
    kind.from_config(settings).save_pretrained("reward")
    with program.compile(deployment).launch("local") as running:  # <-
        running.step(tiny.prompts(2))
