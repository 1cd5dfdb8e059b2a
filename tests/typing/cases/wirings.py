"""Wiring mistakes of the field, one a dataflow. A type checker must find the one on every marked line; so must a check."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch

import hfdsl as hf
from hfdsl import Add, Dispatch, bf16, f32, i64, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


b = TypeVar("b")
t = TypeVar("t")


class Prompts(hf.Batch):
    ids: i64[B, P]
    answer: hf.Obj[str, B]
    number: hf.Obj[int, B]


class Rollout(hf.Batch):
    ids: i64[B, Add[P, R]]
    log_probs: f32[B, R]
    half: bf16[B, R]


class Pair(hf.Batch):
    ids: i64[B, P]
    log_probs: f32[B, R]


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    count: hf.Metric[int, Literal["sum"]]


class Texts(hf.Batch):
    answer: hf.Obj[str, B]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PROTO)
    def text(self, prompts: hf.Obj[str, B]) -> Rollout:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PROTO)
    def metric(self, m: hf.Metric[float, Literal["mean"]]) -> float:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> float:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def names(self) -> str:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PP_ONLY)
    def layers(self) -> int:
        raise NotImplementedError

    @register(Dispatch.ALL_TO_ALL)
    def each(self, x: float) -> float:
        raise NotImplementedError

    @register(Dispatch.THREE_D_PROTO)
    def update(self, r: Rollout) -> Metrics:
        raise NotImplementedError

    @register(Dispatch.ONE_TO_ALL)
    def opt(self, x: int | None = None, kind: Literal["a", "b"] = "a", sizes: list[int] | None = None) -> None:
        raise NotImplementedError

    def helper(self) -> int:
        return 3


@hf.function
def whiten(x: f32[b, t]) -> f32[b, t]:
    raise NotImplementedError


@hf.function
def low(memory: hf.PerRank[float]) -> float:
    raise NotImplementedError


@hf.dataflow
def column_of_other_dims(prompts: Prompts, actor: Actor) -> f32[B, P]:
    return whiten(actor.generate(prompts).log_probs)  # E: a column of other dims than annotated


@hf.dataflow
def ranks_of_another_type(prompts: Prompts, actor: Actor) -> hf.PerRank[str]:
    return actor.memory()  # E: a list of other values than annotated


@hf.dataflow
def ranks_for_stages(prompts: Prompts, actor: Actor) -> hf.PerStage[int]:
    return actor.memory()  # E: one value a rank where one a stage is annotated


@hf.dataflow
def list_for_a_value(prompts: Prompts, actor: Actor) -> float:
    return actor.memory()  # E: a list where a value is annotated


@hf.dataflow
def list_of_another_record(prompts: Prompts, actor: Actor) -> list[Metrics]:
    return [actor.generate(prompts)]  # E: a list of other records than annotated


@hf.dataflow
def number_for_text(prompts: Prompts, actor: Actor) -> str:
    return low(actor.memory())  # E: another Python type than annotated


@hf.dataflow
def texts_for_numbers(prompts: Prompts, actor: Actor) -> str:
    return low(actor.names())  # E: a list of texts where numbers are taken


@hf.dataflow
def objects_of_another_type(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.text(prompts.number)  # E: objects of another type


@hf.dataflow
def metric_of_another_reduction(prompts: Prompts, actor: Actor) -> float:
    return actor.metric(actor.update(actor.generate(prompts)).count)  # E: a metric of another type and reduction


@hf.dataflow
def ranks_of_texts(prompts: Prompts, actor: Actor) -> hf.PerRank[float]:
    return actor.each(actor.names())  # E: one text a rank where numbers are taken


@hf.dataflow
def text_for_a_list(prompts: Prompts, actor: Actor) -> hf.PerRank[float]:
    return actor.each("abc")  # E: a text where one value a rank is taken


@hf.dataflow
def constant_for_an_optional(prompts: Prompts, actor: Actor) -> None:
    actor.opt("3")  # E: a constant of another type than an optional one


@hf.dataflow
def constant_for_a_literal(prompts: Prompts, actor: Actor) -> None:
    actor.opt(3, "c")  # E: a constant that is none of the literals


@hf.dataflow
def list_of_constants(prompts: Prompts, actor: Actor) -> None:
    actor.opt(3, "a", ["x"])  # E: a list of constants of another type


@hf.dataflow
def record_of_other_objects(prompts: Prompts, actor: Actor) -> Texts:
    return Texts(answer=prompts.number)  # E: objects of another type in a record


@hf.dataflow
def record_of_another_metric(prompts: Prompts, actor: Actor) -> Metrics:
    m = actor.update(actor.generate(prompts))
    return Metrics(loss=m.loss, count=m.loss)  # E: a metric of another reduction in a record


@hf.dataflow
def record_for_a_tuple(prompts: Prompts, actor: Actor) -> tuple[Rollout, Rollout]:
    return actor.generate(prompts)  # E: a record where a tuple is annotated


@hf.dataflow
def record_for_a_number(prompts: Prompts, actor: Actor) -> tuple[Rollout, float]:
    r = actor.generate(prompts)
    return r, actor.update(r)  # E: a record where a number is annotated


@hf.dataflow
def dict_of_another_record(prompts: Prompts, actor: Actor) -> dict[str, Rollout]:
    return {"a": actor.update(actor.generate(prompts))}  # E: a dict of other records than annotated


@hf.dataflow
def objects_for_others(prompts: Prompts, actor: Actor) -> hf.Obj[int, B]:
    return prompts.answer  # E: objects of another type than annotated


@hf.dataflow
def column_for_a_record(prompts: Prompts, actor: Actor) -> Rollout:
    return column_of_other_dims(prompts, actor)  # E: a column of a dataflow within, where a record is annotated


@hf.dataflow
def record_into_a_dataflow(prompts: Prompts, actor: Actor) -> Rollout:
    return again(actor.generate(prompts), actor)  # E: another record into a dataflow within


@hf.dataflow
def again(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts)


@hf.dataflow
def method_into_a_merge(prompts: Prompts, actor: Actor) -> Pair:
    return hf.merge(Pair, actor.generate)  # E: a method where a record is taken


@hf.dataflow
def role_for_a_record(prompts: Prompts, actor: Actor) -> Pair:
    return hf.merge(Actor, prompts)  # E: a role where a record class is taken


@hf.dataflow
def misspelled_keyword(prompts: Prompts, actor: Actor) -> Pair:
    return hf.repeat(times=2, bach=prompts)  # E: a misspelled keyword


@hf.dataflow
def unregistered(prompts: Prompts, actor: Actor) -> int:
    return actor.helper(3)  # E: too many arguments for a method that is not registered


@hf.dataflow
def role_into_a_role(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(actor)  # E: a role where a record is taken


@hf.dataflow
def none_into_a_role(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(None)  # E: None where a record is taken


@hf.dataflow
def list_into_a_role(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate([prompts])  # E: a list where a record is taken


@hf.dataflow
def column_of_another_dtype(prompts: Prompts, actor: Actor) -> f32[B, R]:
    return actor.generate(prompts).half  # E: a column of another dtype than annotated


@hf.dataflow
def annotated_name(prompts: Prompts, actor: Actor) -> Rollout:
    result: Rollout = prompts  # E: a name that is annotated with another record
    return actor.generate(prompts)


@hf.dataflow
def parts_for_a_record(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(hf.minibatches(prompts, 2))  # E: mini-batches where a record is taken


@hf.dataflow
def lists_of_mixed_types(prompts: Prompts, actor: Actor) -> hf.PerRank[float]:
    return actor.each([1.0, "a"])  # E: one value a rank, of mixed types


@hf.dataflow
def record_for_none(prompts: Prompts, actor: Actor) -> None:
    return actor.generate(prompts)  # E: a record where None is annotated


@hf.dataflow
def record_of_other_dims(prompts: Prompts, actor: Actor) -> Pair:
    r = actor.generate(prompts)
    return Pair(ids=r.ids, log_probs=r.log_probs)  # E: a column of other dims in a record


@hf.dataflow
def record_of_too_much(prompts: Prompts, actor: Actor) -> Pair:
    r = actor.generate(prompts)
    return Pair(ids=prompts.ids, log_probs=torch.zeros(3), x=3)  # E: a column too many in a record


@hf.dataflow
def too_many(prompts: Prompts, actor: Actor) -> Rollout:
    return actor.generate(prompts, 3, *[4])  # E: too many arguments
