"""An engine with the weights of a frozen teacher answers, and the student imitates its best answers."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import passed
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Sequences, prompts_of


class Student(Trainer):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def imitate(self, sequences: Sequences) -> ActorMetrics:
        return ActorMetrics(loss=float(-self.chosen(sequences.ids.tensor).mean()))


@hf.dataflow
def program(prompts: Prompts, student: Student, teacher: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    answers = engine.answer(prompts)
    metrics = student.imitate(hf.fill(hf.filter(answers, passed(reward.score(answers)).keep), 8))
    hf.sync(teacher, engine)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        student=hf.place(Student, PolicyConfig(), pool=pool),
        teacher=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
