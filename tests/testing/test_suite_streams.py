"""The streams of the conformance suite: each part of them fails on a backend that does this part wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.messages import SegmentResult
from hfdsl.runtime.queues.files import QueueFile, SavedPayloads
from hfdsl.testing import run_suite
from hfdsl.testing.conformance import DEPLOYMENTS
from hfdsl.testing.stream_model import ModelError, StreamModel
from hfdsl.testing.suite_queues import next_token, next_weight
from hfdsl.testing.suite_streams import STREAM_DEPLOYMENTS, STREAMS, StreamProgram

Result = list[tuple[SegmentResult, list[Any]]]

DECIDING = {"dropping", "refilling", "masking", "filtering", "arriving", "resuming_groups"}
"""The programs whose rows come from queues that decide."""


def problems(backend: type[Any], where: str = "pools apart") -> dict[str, str]:
    """What the suite says of a backend, by program."""

    def lowering(plan: Plan, *, seed: int, **_: object) -> Any:
        return backend(plan, seed)

    report = run_suite(lowering, STREAMS, faults=False, deployments=where)
    return {outcome.program: outcome.problem for outcome in report.problems if outcome.problem is not None}


class Basic:
    """Has what every backend has, and nothing else."""

    METHODS = (
        *("driver", "add", "topology", "put", "run", "done", "get", "save", "saved", "load", "record"),
        *("digests", "digest_exports", "sent_digests", "begin", "close"),
    )

    def __init__(self, plan: Plan, seed: int) -> None:
        self._local = LocalBackend(plan, seed)

    def __getattr__(self, name: str) -> Any:
        if name not in self.METHODS:
            raise AttributeError(name)
        return getattr(self._local, name)


class Synchronous(LocalBackend):
    """Knows of no queues: hands on the payloads of a call alone."""

    def run(self, submission: Submission) -> Result:
        return super().run(replace(submission, queued=None))


class Unmasking(LocalBackend):
    """Leaves the masks of late groups as they are."""

    def run(self, submission: Submission) -> Result:
        if submission.queued is not None:
            queued = [[rows._replace(masked=()) for rows in of_rank] for of_rank in submission.queued]
            submission = replace(submission, queued=queued)
        return super().run(submission)


class Reordering(LocalBackend):
    """Joins the dispatches of a batch in the wrong order."""

    def run(self, submission: Submission) -> Result:
        if submission.queued is not None:
            queued = [[rows._replace(parts=rows.parts[::-1]) for rows in of_rank] for of_rank in submission.queued]
            payloads = [of_rank[::-1] for of_rank in submission.payloads]
            submission = replace(submission, queued=queued, payloads=payloads)
        return super().run(submission)


class Versionless(LocalBackend):
    """Tells calls behind a queue nothing of the versions of their rows."""

    def run(self, submission: Submission) -> Result:
        return super().run(replace(submission, call=submission.call._replace(row_versions=(), stage_steps=())))


class Stale(LocalBackend):
    """Sends the weights of the update before, wherever they are sent between calls."""

    def __init__(self, plan: Plan, seed: int) -> None:
        super().__init__(plan, seed)
        self._payloads: dict[str, Any] = {}

    def run(self, submission: Submission) -> Result:
        is_load = [step.label for step in submission.segment.steps] == ["sampler.load"]
        if is_load and not submission.call.in_flight:
            payloads, plan = submission.payloads, submission.call.plan
            submission = replace(submission, payloads=self._payloads.get(plan, payloads))
            self._payloads[plan] = payloads
        return super().run(submission)


class Punctual(LocalBackend):
    """Has calls take all weights in flight before their first token."""

    def run(self, submission: Submission) -> Result:
        in_flight = [
            weights._replace(schedule=[[rank, 0, loaded] for rank, _, loaded in _last_of_rank(weights.schedule)])
            if weights.schedule
            else weights
            for weights in submission.call.in_flight
        ]
        return super().run(replace(submission, call=submission.call._replace(in_flight=in_flight)))


def _last_of_rank(schedule: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return list({rank: (rank, at, loaded) for rank, at, loaded in schedule}.values())


class Inverting(LocalBackend):
    """Tells the driver the opposite of what a filter says."""

    def get(self, handles: Sequence[Any]) -> list[Any]:
        return [{part: _inverted(value) for part, value in content.items()} for content in super().get(handles)]


def _inverted(value: Any) -> Any:
    return ~value if isinstance(value, torch.Tensor) and value.dtype is torch.bool else value


class Unloading(LocalBackend):
    """Reads nothing of the queues again."""

    def load_queues(self, folder: str, plan: str, files: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        return

    def read_payloads(self, folder: str, saved: Sequence[tuple[Plan, SavedPayloads, QueueFile]]) -> list[Sequence[Any]]:
        return [() for _ in saved]


class Unwriting(LocalBackend):
    """Writes nothing of the queues."""

    def save_queues(self, folder: str, plan: str, pending: Any) -> dict[str, list[dict[str, str]]]:
        return {}


class Exchanging(LocalBackend):
    """Reads the payloads of a dispatch again in another order."""

    def read_payloads(self, folder: str, saved: Sequence[tuple[Plan, SavedPayloads, QueueFile]]) -> list[Sequence[Any]]:
        return [of_dispatch[::-1] for of_dispatch in super().read_payloads(folder, saved)]


class Forgetful(LocalBackend):
    """Loads no states of roles."""

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        return


@pytest.mark.parametrize(
    ("backend", "programs", "text"),
    [
        (Synchronous, DECIDING, "HF518: 'learner.update' on rank 0 reads column 'number' of 'queue'"),
        (Unmasking, {"masking"}, "column 'unmasked', row 0: 0 is right, got 4"),
        (Reordering, DECIDING - {"arriving"}, "is right, got"),
        (Versionless, {program.name for program in STREAMS}, "column 'from_version'"),
        (Stale, {program.name for program in STREAMS} - {"arriving"}, "is right, got"),
        (Punctual, {"arriving"}, '"loaded": [[0, 0], [2, 1]]'),
        (Inverting, {"filtering"}, 'HF761: the log has {"kind": "lose"'),
        (Unloading, {"resuming", "resuming_groups"}, "HF518: "),
        (Unwriting, {"resuming", "resuming_groups"}, "HF518: Unwriting.save_queues returned 0 files of 'sampler'"),
        (Exchanging, {"resuming_groups"}, "HF518: column "),
        (Forgetful, {"resuming", "resuming_groups"}, "after a load of the checkpoint behind result"),
        (Basic, {"resuming", "resuming_groups"}, "HF908: Basic cannot write the contents of queues ('queue' of lag "),
    ],
)
def test_each_mistake_of_a_backend_is_found(backend: type[Any], programs: set[str], text: str) -> None:
    failing = problems(backend)
    assert set(failing) == programs, failing
    for problem in failing.values():
        assert text in problem


def test_programs_with_queues_run_under_every_deployment_of_the_suite() -> None:
    assert list(STREAM_DEPLOYMENTS) == list(DEPLOYMENTS)


def test_the_model_is_that_of_an_example_by_hand() -> None:
    """Two questions a step, a group each; groups 0 and 3 are trained, group 1 is masked with them."""
    log = [
        Decision("dispatch", "queue", 0, (0, 1), (0, 1)),
        Decision("dispatch", "queue", 0, (2, 3), (2, 3)),
        Decision("take", "queue", 0, (0, 3)),
        Decision("dispatch", "queue", 1, (4, 5), (4, 5)),
        Decision("take", "queue", 1, (1, 4), masked=(1,)),
        Decision("take", "queue", 2, (5, 2)),
    ]
    first, second, third = StreamModel(1, 2).results(log)
    # Questions 0 and 3 have 4 tokens each, 3x + 1: 1, 4, 13, 40 and 10, 31, 94, 283; two answers to each.
    assert [row.tolist() for row in first.tokens.rows] == [[1, 4, 13, 40]] * 2 + [[10, 31, 94, 283]] * 2
    assert first.unmasked.tensor.tolist() == [4] * 4
    weight = (1 + 2 * (1 + 4 + 13 + 40 + 10 + 31 + 94 + 283)) % 1009
    assert next_weight(1, 952) == weight == 953
    # Question 1 has 3 tokens under weight 1, and question 4 as many under 953: 12 + 953 = 965, ...
    assert [row.tolist() for row in second.tokens.rows] == [[4, 13, 40]] * 2 + [[965, 821, 389]] * 2
    assert [second.unmasked.tensor.tolist(), second.from_version.tensor.tolist()] == [[0, 0, 3, 3], [0, 0, 1, 1]]
    assert next_token(5, (953 + 2 * (965 + 821 + 389)) % 1009) != third.tokens.rows[0].tolist()[0] == (15 + 953) % 1009
    assert third.update.tensor.tolist() == [2] * 4


@pytest.mark.parametrize("decision", [Decision("lose", "queue", 0, (2,)), Decision("take", "queue", 0, (0, 1))])
def test_a_filter_loses_what_it_does_not_keep_and_nothing_else(decision: Decision) -> None:
    """Of question 1, and of no other one here."""
    dispatch = Decision("dispatch", "queue", 0, (0, 1, 2), (0, 1, 2))
    with pytest.raises(ModelError, match=f"a {decision.kind} of group"):
        list(StreamModel(1, 3, loses=True).results([dispatch, decision]))


@pytest.mark.parametrize("program", STREAMS, ids=lambda program: program.name)
def test_a_log_of_the_suite_has_what_it_is_for(program: StreamProgram) -> None:
    kinds = [decision.kind for decision in program.log]
    late = {"dropping": "drop", "refilling": "drop", "resuming_groups": "drop", "filtering": "lose"}
    assert late.get(program.name, "take") in kinds
    assert any(decision.masked for decision in program.log) == (program.name == "masking")
    prompts = [prompt for decision in program.log for prompt in decision.prompts]
    again = len(prompts) - len(set(prompts))
    assert bool(again) == (program.name in ("refilling", "filtering", "resuming_groups"))
