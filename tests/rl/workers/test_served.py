"""Roles whose work a server does: what they ask, what they make of the answers, and every way in which that fails."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import ResourceError, RoleError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, Rollout, Scores, Sequences
from hfdsl.rl.models import http_client as requests
from hfdsl.rl.models.http_client import Client
from tests.rl.workers import tiny
from tests.rl.workers.server import Server, cut, drips, judgement, says, serving

ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}
PROMPTS = tiny.prompts(ROWS)


@hf.dataflow
def rollouts(prompts: Prompts, teacher: w.ServedPolicy) -> tuple[Rollout, Rollout]:
    return teacher.generate(prompts), teacher.generate(prompts, greedy=True)


@hf.dataflow
def judged(prompts: Prompts, teacher: w.ServedPolicy, judge: w.Judge) -> Scores:
    return judge.score(prompts, teacher.generate(prompts))


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def asks(server: Server, **changes: Any) -> w.ServerConfig:
    return replace(w.ServerConfig(server.url, "small", timeout=10, patience=10, concurrency=4), **changes)


def generated(config: w.ServerConfig, ranks: int = 1, **generation: Any) -> tuple[Rollout, Rollout]:
    served = w.ServedConfig(config, replace(tiny.GENERATION, **generation), pad_token=tiny.PAD)
    pool = hf.ResourcePool([ranks], use_gpu=False)
    plan = rollouts.compile(hf.Deployment(teacher=hf.place(w.ServedPolicy, served, pool=pool)), SIZES)
    with plan.launch(seed=7) as running:
        result: tuple[Rollout, Rollout] = running.step(PROMPTS)
    return result


def scores(config: w.ServerConfig, **judge: Any) -> list[float]:
    pool = hf.ResourcePool([2], use_gpu=False)
    how = {"question": "{prompt}>{response} ({task[row]})", "tokenizer": letters, **judge}
    deployment = hf.Deployment(
        teacher=hf.place(w.ServedPolicy, w.ServedConfig(config, tiny.GENERATION, tiny.PAD), pool=pool),
        judge=hf.place(w.Judge, w.JudgeConfig(config, **how), pool=pool),
    )
    with judged.compile(deployment, SIZES).launch(seed=7) as running:
        result: Scores = running.step(PROMPTS)
    return result.score.tensor.tolist()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_DELAY", 0.01)


# -- what is asked, and what is made of it


def test_a_rollout_has_the_tokens_and_log_probs_that_the_server_gives() -> None:
    with serving() as server:
        sampled, greedy = generated(asks(server))
    seeds = [body.get("seed", 0) for _, _, body in sorted(server.asked, key=lambda request: request[2]["temperature"])][
        ROWS:
    ]
    by_prompt = {tuple(body["prompt"]): body for _, _, body in server.asked if body["temperature"]}
    assert len(set(seeds)) == ROWS
    for row in range(ROWS):
        prompt = PROMPTS.ids.tensor[row][PROMPTS.mask.tensor[row]].tolist()
        forward = [token % 14 + 2 for token in prompt]
        backward = forward[::-1] if by_prompt[tuple(prompt)]["seed"] % 2 else forward
        for rollout, tokens in ((sampled, backward), (greedy, forward)):
            n = len(tokens)
            assert rollout.ids.tensor[row].tolist() == [
                *PROMPTS.ids.tensor[row].tolist(),
                *tokens,
                *[tiny.PAD] * (6 - n),
            ]
            assert rollout.response_mask.tensor[row].tolist() == [True] * n + [False] * (6 - n)
            assert rollout.mask.tensor[row].tolist() == [
                *PROMPTS.mask.tensor[row].tolist(),
                *[True] * n,
                *[False] * (6 - n),
            ]
            expected = torch.tensor([*(-token / 10 for token in tokens), *[0.0] * (6 - n)])
            torch.testing.assert_close(rollout.log_probs.tensor[row], expected)


def test_what_is_asked_says_how_to_sample() -> None:
    with serving() as server:
        generated(asks(server, extra={"min_tokens": 1}), temperature=0.7, top_p=0.9, top_k=5)
    sampled, greedy = [
        [body for _, _, body in server.asked if bool(body["temperature"]) is sampled] for sampled in (True, False)
    ]
    assert {path for path, _, _ in server.asked} == {"/v1/completions"}
    wanted = {"model": "small", "max_tokens": 6, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_tokens": 1}
    assert all(body.items() >= wanted.items() and body["seed"] >= 0 for body in sampled)
    assert all(body["temperature"] == 0 and "seed" not in body and "top_p" not in body for body in greedy)
    assert all(body["return_token_ids"] and body["logprobs"] for body in sampled + greedy)


def test_what_a_row_gets_does_not_depend_on_the_split_and_a_run_can_be_repeated() -> None:
    with serving() as server:
        first, two, again = generated(asks(server)), generated(asks(server), ranks=4), generated(asks(server), ranks=4)
    for whole, parts, same in zip(first, two, again, strict=True):
        assert torch.equal(whole.ids.tensor, parts.ids.tensor)
        assert torch.equal(parts.log_probs.tensor, same.log_probs.tensor)


def test_no_more_requests_at_a_time_than_allowed() -> None:
    with serving(pause=0.05) as server:
        generated(asks(server, concurrency=3))
    assert 1 < server.most <= 3
    with serving(pause=0.01) as server:
        generated(asks(server, concurrency=1))
    assert server.most == 1


def test_tokens_may_come_as_numbers_in_texts() -> None:
    log_probs = {"tokens": ["token_id:5", "token_id:0"], "token_logprobs": [-0.5, 0]}
    with serving(answer={"choices": [{"finish_reason": "length", "logprobs": log_probs}]}) as server:
        sampled, _ = generated(asks(server))
    assert sampled.ids.tensor[:, 5:].tolist() == [[5, 0, 0, 0, 0, 0]] * ROWS
    assert sampled.response_mask.tensor.sum(1).tolist() == [2] * ROWS


def test_a_judge_is_asked_of_every_response_and_its_last_number_counts() -> None:
    with serving() as server:
        marks = scores(asks(server), system="Be strict.")
        requests = [body["messages"] for path, _, body in server.asked if path.endswith("/chat/completions")]
    texts = {messages[1]["content"] for messages in requests}
    assert all(messages[0] == {"role": "system", "content": "Be strict."} for messages in requests)
    assert {text.split(" ")[1] for text in texts} == {f"({row})" for row in range(ROWS)}
    expected = {text.split(" ")[1]: float(text.count("a")) + 0.5 for text in texts}
    assert marks == [expected[f"({row})"] for row in range(ROWS)]


def test_a_judge_with_a_pattern() -> None:
    with serving() as server:
        assert scores(asks(server), pattern=r"count from (\d)") == [1.0] * ROWS
    assert judgement({"messages": [{"content": "banana"}]})["message"]["content"].endswith("Mark: 3.5")


def test_a_key_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THE_JUDGE", "secret")
    with serving() as server:
        config = asks(server, api_key="KEY_OF_THE_JUDGE")
        generated(config)
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {"Bearer secret"}
    assert "secret" not in repr(config)


# -- what passes


class Waits:
    """Stands where a client waits, and does not."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False

    def clear(self) -> None: ...

    def set(self) -> None: ...


def test_what_passes_is_tried_again_after_the_time_that_the_server_says() -> None:
    date = says(503, "", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")
    faults = [says(429, "busy", Retry_After="7"), says(500, ""), cut, says(502, "", Retry_After="soon"), date]
    with serving(*faults) as server:
        client = Client(asks(server, patience=100))
        waits: Any = Waits()
        client._stopped = waits
        assert client.ask("completions", [{"prompt": [3], "max_tokens": 1}], lambda answer: len(answer["choices"])) == [
            1
        ]
    assert waits.seconds == [7.0, 0.02, 0.04, 0.08, 0.16]
    assert len(server.asked) == 6


def test_rows_are_asked_by_themselves_so_that_one_fault_is_one_more_request() -> None:
    with serving(says(500, ""), cut, says(429, "", Retry_After="0.01")) as server:
        sampled, _ = generated(asks(server))
        server.faults.clear()
        plain, _ = generated(asks(server))
    assert torch.equal(sampled.ids.tensor, plain.ids.tensor)
    assert len(server.asked) == 4 * ROWS + 3


def test_a_slow_answer_is_asked_for_again() -> None:
    with serving(drips) as server:
        sampled, _ = generated(asks(server, timeout=0.5))
    assert sampled.response_mask.tensor.any(1).all()
    assert len(server.asked) == 2 * ROWS + 1


# -- what does not


def failed(config: w.ServerConfig) -> RoleError:
    with pytest.raises(RoleError) as error:
        generated(config)
    return error.value


def test_what_does_not_pass_in_time_is_reported_with_the_last_try() -> None:
    with serving(*[says(500, json.dumps({"error": {"message": "out of memory"}}))] * 99) as server:
        error = failed(asks(server, patience=0.5))
    assert error.code == "HF911"
    assert error.message.startswith("'teacher.generate#1' on rank 0 in step 0: row ")
    assert f"POST {server.url}/completions did not succeed in " in error.message
    assert error.message.endswith(" within patience=0.5 s; the last one: the server answered 500: out of memory")


def test_a_try_that_patience_cuts_short_leaves_the_answer_before_it_in_the_message() -> None:
    with serving(says(500, json.dumps({"error": {"message": "out of memory"}})), *[drips] * 99) as server:
        error = failed(asks(server, patience=1.0, concurrency=1))
    assert error.message.endswith(" within patience=1 s; the last one: the server answered 500: out of memory")


def test_a_server_that_asks_for_more_time_than_there_is_is_not_waited_for() -> None:
    with serving(*[says(429, "busy", Retry_After="3600")] * 99) as server:
        error = failed(asks(server))
    assert error.message.endswith(
        "did not succeed in 1 try within patience=10 s; the last one: the server answered 429: busy"
    )


def test_nobody_listens() -> None:
    with serving() as server:
        pass
    error = failed(asks(server, patience=0))
    assert (error.code, error.message.partition("the last one: ")[2]) == (
        "HF911",
        "ConnectionRefusedError: Connection refused",
    )


@pytest.mark.parametrize("fault", [drips, None])
def test_no_answer_within_the_timeout(fault: Any) -> None:
    with serving(*[fault] * 99 if fault else [], pause=0 if fault else 0.5) as server:
        error = failed(asks(server, timeout=0.1, patience=0))
    assert error.message.endswith("the last one: no answer within timeout=0.1 s")


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (400, json.dumps({"error": {"message": "prompt too long", "type": "BadRequest"}}), "prompt too long"),
        (404, json.dumps({"object": "error", "message": "no model small"}), "no model small"),
        (422, json.dumps({"detail": [{"loc": ["body", "seed"]}]}), '[{"loc": ["body", "seed"]}]'),
        (401, "", "nothing"),
        (301, "<html>" + "x" * 1000, "<html>" + "x" * 394 + " ..."),
    ],
)
def test_what_a_server_refuses_is_reported_at_once_in_its_words(status: int, text: str, said: str) -> None:
    with serving(*[says(status, text)] * 99) as server:
        error = failed(asks(server))
    assert error.code == "HF912"
    assert error.message == f"'teacher.generate#1' on rank 0 in step 0: row 0: the server answered {status}: {said}"
    assert len(server.asked) <= ROWS


def test_the_row_that_fails_is_named_and_others_wait_no_longer() -> None:
    """The server asks to retry all but the last row in an hour; the last one fails for good."""

    def answers(handler: Any, body: dict[str, Any]) -> None:
        fault = says(400, "no") if body["prompt"] == last else says(429, "", Retry_After="3600")
        fault(handler, body)

    last = PROMPTS.ids.tensor[-1][PROMPTS.mask.tensor[-1]].tolist()
    with serving(*[answers] * 99) as server:
        error = failed(asks(server, patience=10_000, concurrency=ROWS, timeout=5))
    assert error.code == "HF912"
    assert error.message.endswith(f"row {ROWS - 1}: the server answered 400: no")


TOKENS = {"finish_reason": "stop", "token_ids": [3, 4], "logprobs": {"token_logprobs": [-1.0, -2.0]}}


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([], "the answer has 0 choices, expected one"),
        (None, "the answer has no choices, expected one"),
        ([{**TOKENS, "finish_reason": "abort"}], "the response ended for the reason 'abort', not 'stop' or 'length'"),
        (
            [{**TOKENS, "logprobs": None}],
            "the answer has no logprobs.token_logprobs; does the server return log-probs?",
        ),
        ([{**TOKENS, "token_ids": None}], "the answer has no token_ids, though the request has return_token_ids; "),
        (
            [{**TOKENS, "token_ids": None, "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}],
            "the answer has no token_ids",
        ),
        (
            [{**TOKENS, "token_ids": [3]}],
            "the answer has 1 token and 2 log-probs, expected as many of each, from 1 to 6",
        ),
        (
            [{**TOKENS, "token_ids": [3] * 7, "logprobs": {"token_logprobs": [-1.0] * 7}}],
            "the answer has 7 tokens and 7 log-probs, expected as many of each, from 1 to 6",
        ),
        ([{**TOKENS, "token_ids": [3, "b"]}], "the answer has the token 'b', which is not a token id"),
        ([{**TOKENS, "token_ids": [3, False]}], "the answer has the token False, which is not a token id"),
        (
            [{**TOKENS, "token_ids": [], "logprobs": {"token_logprobs": []}}],
            "the answer has 0 tokens and 0 log-probs, expected as many of each, from 1 to 6",
        ),
        ([{**TOKENS, "token_ids": [-3, 4]}], "the answer has the token -3, which is not a token id"),
        (
            [{**TOKENS, "logprobs": {"token_logprobs": [-1.0, None]}}],
            "the log-prob of token 1 is None, expected a number up to 0",
        ),
        ([{**TOKENS, "logprobs": {"token_logprobs": [float("nan"), -1]}}], "the log-prob of token 0 is nan"),
        ([{**TOKENS, "logprobs": {"token_logprobs": [2.5, -1]}}], "the log-prob of token 0 is 2.5"),
    ],
)
def test_an_answer_that_is_no_rollout(choices: Any, said: str) -> None:
    with serving(answer={"choices": choices}) as server:
        error = failed(asks(server))
    assert error.code == "HF913"
    assert f"row 0: {said}" in error.message


@pytest.mark.parametrize(("text", "said"), [("<html>", "not JSON (Expecting value"), ("[1]", "not a JSON object")])
def test_an_answer_that_is_no_json(text: str, said: str) -> None:
    with serving(*[says(200, text)] * 99) as server:
        error = failed(asks(server))
    assert error.code == "HF913"
    assert f"row 0: the answer is {said}" in error.message
    assert error.message.endswith(f": {text}")


@hf.dataflow
def judge_alone(prompts: Prompts, sequences: Sequences, judge: w.Judge) -> Scores:
    return judge.score(prompts, sequences)


UNFIT = "its task does not fit the judge's question"


@pytest.mark.parametrize(
    ("changes", "message", "code", "said"),
    [
        (
            {"pattern": r"Grade: (\d)"},
            None,
            "HF913",
            r"no number of the pattern 'Grade: (\\d)' is in the",
        ),
        ({}, {"content": None}, "HF913", "the answer has no message with a content"),
        ({"pattern": r"\w+"}, {"content": "1e999"}, "HF913", "the judge's number is inf, expected a finite number"),
        ({"question": "{task[answer]}"}, None, "HF811", f"{UNFIT} '{{task[answer]}}': KeyError: 'answer'"),
        ({"question": "{task.answer}"}, None, "HF811", f"{UNFIT} '{{task.answer}}': AttributeError"),
    ],
)
def test_a_judgement_that_is_none(changes: Any, message: Any, code: str, said: str) -> None:
    pool = hf.ResourcePool([1], use_gpu=False)
    with serving(answer=message and {"choices": [{"message": message}]}) as server:
        config = w.JudgeConfig(asks(server), **{"question": "{response}", "tokenizer": letters, **changes})
        plan = judge_alone.compile(hf.Deployment(judge=hf.place(w.Judge, config, pool=pool)), SIZES)
        with plan.launch() as running, pytest.raises(RoleError) as error:
            running.step(PROMPTS, tiny.demonstrations(ROWS))
    assert error.value.code == code
    assert f"'judge.score' on rank 0 in step 0: row 0: {said}" in error.value.message


# -- mistakes that are reported before any request


def test_a_configuration_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for config, message in (
        (w.ServerConfig("localhost:8000", "m"), "url=\"http://host:port/v1\" or one with https, got 'localhost:8000'"),
        (w.ServerConfig("http://", "m"), "got 'http://'"),
        (
            w.ServerConfig("http://h/v1", "m", api_key="NO_SUCH_KEY"),
            "'NO_SUCH_KEY', the name of the environment variable",
        ),
    ):
        with pytest.raises(ResourceError, match="HF812") as error:
            Client(config)
        assert message in error.value.message
    with pytest.raises(ResourceError, match=r"HF812: a JudgeConfig has pattern='\(': missing \)"):
        w.Judge(w.JudgeConfig(w.ServerConfig("http://h/v1", "m"), "", letters, pattern="("))


def test_nobody_can_bring_a_served_policy_other_weights() -> None:
    @hf.dataflow
    def synced(prompts: Prompts, actor: w.Actor, teacher: w.ServedPolicy) -> Rollout:
        hf.sync(actor, teacher)  # type: ignore[arg-type, unused-ignore]
        return teacher.generate(prompts)

    report = synced.check(None, SIZES)
    assert not report.ok
    assert "ServedPolicy loads nothing" in str(report)
