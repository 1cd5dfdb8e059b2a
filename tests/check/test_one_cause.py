# mypy: disable-error-code="empty-body"
"""One cause is one finding: mistakes that upset several rules are reported by the rule that they break."""

from __future__ import annotations

from pathlib import Path

import pytest

import hfdsl as hf
from hfdsl.errors import HfError
from hfdsl.graph.spans import traceback_span
from tests.check.prelude import Actor, B, Dispatch, Prompts, Rollout, Scores, pool, register


class Steady(hf.Worker):
    def __init__(self, top_k: int = 2) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B // dp % top_k == 0")
    def score(self, rollout: Rollout) -> Scores:
        raise NotImplementedError


class Plain(hf.Worker):
    """Without a constructor."""


class Flags(hf.Batch):
    mask: hf.bool_[B]
    weight: hf.f32[B]


@hf.dataflow
def steady(rollout: Rollout, judge: Steady) -> Scores:
    return judge.score(rollout)


def test_swapped_records_are_one_mistake() -> None:
    @hf.function
    def pair(rollout: Rollout, scores: Scores) -> Scores:
        raise NotImplementedError

    @hf.dataflow
    def program(rollout: Rollout, scores: Scores) -> list[Scores]:
        return [pair(scores, rollout) for _ in range(2)]  # type: ignore[arg-type]  # the mistake

    [finding] = program.check()
    assert finding.code == "HF204"
    assert "takes Rollout as 'rollout' and Scores as 'scores', but gets the two swapped" in finding.message
    assert [finding.primary.text, finding.related[0].text] == ["this is Scores of B rows", "this is Rollout of B rows"]


def test_two_wrong_records_that_are_not_swapped_are_two_mistakes() -> None:
    @hf.function
    def pair(rollout: Rollout, scores: Scores) -> Scores:
        raise NotImplementedError

    @hf.dataflow
    def program(prompts: Prompts) -> Scores:
        return pair(prompts, prompts)  # type: ignore[arg-type]  # the mistakes

    assert program.check().codes == ("HF204", "HF204")


def test_a_misspelled_column_of_a_record_is_no_missing_one() -> None:
    @hf.dataflow
    def program(scores: Scores) -> Scores:
        return Scores(rewards=scores.reward)  # type: ignore[call-arg]  # the mistake

    [finding] = program.check()
    assert (finding.code, finding.help) == ("HF201", ("did you mean 'reward'?",))


def test_a_method_that_was_not_called_is_named() -> None:
    @hf.dataflow
    def wired(rollout: Rollout, actor: Actor) -> Scores:
        return actor.score(actor.generate)  # type: ignore[arg-type]  # the mistake

    @hf.dataflow
    def returned(rollout: Rollout, actor: Actor) -> Scores:
        return actor.score  # type: ignore[return-value]  # the mistake

    for program in (wired, returned):
        [finding] = program.check()
        assert "the uncalled function 'actor." in finding.message
        assert "<function" not in str(finding)


def test_an_object_is_reported_by_its_class() -> None:
    @hf.dataflow
    def program(rollout: Rollout, actor: Actor) -> Scores:
        return actor.score(object())  # type: ignore[arg-type]  # the mistake

    [finding] = program.check()
    assert finding.message.endswith("but is wired to an object of class object")


def test_a_mesh_that_does_not_fill_its_pool_breaks_no_requirement_on_dp() -> None:
    wide = hf.Deployment(judge=hf.place(Steady, pool=pool, mesh=hf.Mesh(dp=3)))
    assert steady.check(wide, {B: 64}).codes == ("HF501",)


def test_another_class_meets_no_requirement_of_the_right_one() -> None:
    assert steady.check(hf.Deployment(judge=hf.place(Plain, pool=pool)), {B: 64}).codes == ("HF515",)


@pytest.mark.parametrize(
    ("module", "note"),
    [
        (
            Steady.__module__,
            "the file, or a cell, has defined Steady twice: define the dataflow and place the role after",
        ),
        ("__main__", f"these are two classes, that of {Steady.__module__} and that of __main__, such as of one file"),
    ],
)
def test_another_class_of_the_same_name_is_distinguished(module: str, note: str) -> None:
    again = type("Steady", (hf.Worker,), {**vars(Steady), "__module__": module})
    [finding] = steady.check(hf.Deployment(judge=hf.place(again, pool=pool)), {B: 64})
    assert finding.code == "HF515"
    assert finding.notes[0].startswith(note)


def test_an_argument_that_does_not_exist_is_named() -> None:
    placed = hf.Deployment(judge=hf.place(Steady, topk=2, pool=pool))
    [finding] = steady.check(placed, {B: 64})
    assert finding.code == "HF516"
    assert finding.message.endswith("cannot be built: it has no parameter 'topk'; did you mean 'top_k'?")


def test_the_only_other_place_of_the_class_is_the_one_that_was_meant() -> None:
    [finding] = steady.check(hf.Deployment(reward_model=hf.place(Steady, pool=pool)), {B: 64})
    assert (finding.code, finding.help) == ("HF507", ("rename 'reward_model' to 'judge'",))


def test_one_rank_is_no_ranks() -> None:
    [finding] = steady.check(hf.Deployment(judge=hf.place(Steady, pool=pool, mesh=hf.Mesh())), {B: 64})
    assert "lays out 1 rank, but" in finding.message


def test_a_declaration_that_raises_stands_in_the_users_file() -> None:
    with pytest.raises(HfError) as caught:
        hf.Mesh(tp=4, gen_tp=3)
    span = traceback_span(caught.value)
    assert span.file == str(Path(__file__))


def test_swapped_columns_are_one_mistake() -> None:
    @hf.function
    def weigh(mask: hf.bool_[B], weight: hf.f32[B]) -> Scores:
        raise NotImplementedError

    @hf.dataflow
    def program(flags: Flags) -> Scores:
        return weigh(flags.weight, flags.mask)  # type: ignore[arg-type]  # the mistake

    program.body.__annotations__["flags"] = Flags
    [finding] = program.check()
    assert finding.code == "HF220"
    assert finding.message.startswith(
        "'weigh' takes bool_[B] as 'mask' and f32[B] as 'weight', but gets the two swapped"
    )
    assert finding.help == ("swap what is wired to 'mask' and 'weight'",)
    assert [edit.text for edit in finding.fixes[0].edits] == ["flags.mask", "flags.weight"]


def test_a_record_that_is_unpacked_is_one_mistake() -> None:
    @hf.dataflow
    def call(prompts: Prompts, actor: Actor) -> Rollout:
        return actor.generate(**prompts)  # type: ignore[arg-type]  # the mistake

    @hf.dataflow
    def display(prompts: Prompts) -> dict[str, Prompts]:
        return {**prompts}  # type: ignore[dict-item]  # the mistake

    for program in (call, display):
        [finding] = program.check()
        assert (finding.code, finding.message.partition(",")[0]) == ("HF207", "'**' needs the value of 'prompts'")


def test_a_result_in_a_dict_is_reported_with_its_key() -> None:
    @hf.dataflow
    def wrong(prompts: Prompts, scores: Scores) -> dict[str, Prompts]:
        return {"first": prompts, "second": scores}  # type: ignore[dict-item]  # the mistake

    @hf.dataflow
    def odd(prompts: Prompts) -> object:
        return {"first": prompts, "second": {1, 2}}

    messages = [program.check().findings[0].message for program in (wrong, odd)]
    assert messages == [
        "'wrong' is annotated to return Prompts and returns Scores of B rows at key 'second'",
        "the dataflow returns a 'set' at key 'second', which is not a value of the graph",
    ]


class Learner(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> list[float]: ...


class Misspelled(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("polcy")
    def load(self, weights: list[float]) -> None: ...


class OfAnotherName(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("actor")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: list[float]) -> None: ...


def test_a_misspelled_state_of_a_sync_is_one_mistake() -> None:
    @hf.dataflow
    def program(prompts: Prompts, learner: Learner, engine: Misspelled) -> None:
        learner.update(engine.generate(prompts))
        hf.sync(learner, engine)

    assert program.check().codes == ("HF707",)


def test_a_state_that_is_read_under_another_name_is_shown() -> None:
    @hf.dataflow
    def program(prompts: Prompts, learner: Learner, engine: OfAnotherName) -> None:
        learner.update(engine.generate(prompts))
        hf.sync(learner, engine)

    [finding] = program.check().findings
    assert (finding.code, finding.related[0].text) == ("HF709", "reads 'actor', which no method of it loads")
    assert finding.notes[0].startswith("if both are the same weights, give them one name; if not, ")
