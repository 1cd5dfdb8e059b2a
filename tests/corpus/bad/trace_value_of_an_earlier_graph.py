# mypy: disable-error-code="empty-body"
"""A PPO loss stores the old prediction outside of the function, and uses it when the next graph is traced.

Seen: https://github.com/tensorflow/tensorflow/issues/43650
Elsewhere: "An op outside of the function building code is being passed a Graph tensor" in the first fit of the model.
"""

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import ActorMetrics, B


class Steps(hf.Batch):
    observation: f32[B]
    advantage: f32[B]


class Prediction(hf.Batch):
    prediction: f32[B]


class Model(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def predict(self, steps: Steps) -> Prediction: ...

    @register(Dispatch.DP_PROTO)
    def fit(self, steps: Steps, old: Prediction) -> ActorMetrics: ...


old_predictions: list[Prediction] = []


@hf.dataflow
def collect(steps: Steps, model: Model) -> Prediction:
    old_predictions.append(model.predict(steps))
    return old_predictions[-1]


@hf.dataflow
def learn(steps: Steps, model: Model) -> ActorMetrics:
    return model.fit(steps, old_predictions[-1])  # <- HF209


deployment = hf.Deployment(model=hf.place(Model, pool=hf.ResourcePool([1])))
collect.check(deployment, {B: 128})
experiment = hf.Experiment(learn, deployment, dims={B: 128})
