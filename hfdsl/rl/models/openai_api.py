"""Rollouts and scores by a server that speaks the OpenAI API."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from hfdsl.protocols.call import current_call
from hfdsl.rl.batches import Prompts, Sequences
from hfdsl.rl.models.http_client import Client, RequestError
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.models.rule_rewards import decoder
from hfdsl.rl.workers.config import JudgeConfig, ServedConfig

LOWEST_LOG_PROB = -1e30
"""The least log-prob that an answer may have; float32 can hardly hold a lower one."""

TOKEN_PREFIX = "token_id:"
"""The prefix of a token's number where a server returns tokens as texts."""


def server_rollout(client: Client, prompts: Prompts, config: ServedConfig, *, greedy: bool) -> dict[str, Any]:
    """The columns of a ``Rollout``; each row is a request with a seed of its own."""
    ids, mask, length = prompts.ids.tensor, prompts.mask.tensor, config.generation.max_tokens
    tokens_of = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    seeds = [{} for _ in tokens_of] if greedy else [{"seed": seed % 2**31} for seed in current_call().row_seeds()]
    fixed = {**_sampling(config, greedy), **config.server.extra}
    bodies = [{"prompt": tokens, **seed, **fixed} for tokens, seed in zip(tokens_of, seeds, strict=True)]
    completions = client.ask("completions", bodies, lambda answer: _completion(answer, length))
    response = torch.full((len(ids), length), config.pad_token)
    response_mask, log_probs = torch.zeros(len(ids), length, dtype=torch.bool), torch.zeros(len(ids), length)
    for row, (tokens, values) in enumerate(completions):
        response[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        response_mask[row, : len(tokens)] = True
        log_probs[row, : len(tokens)] = torch.tensor(values)
    response_mask = response_mask.to(ids.device)
    return {
        "ids": torch.cat([ids, response.to(ids.device)], 1),
        "mask": torch.cat([mask, response_mask], 1),
        "response_mask": response_mask,
        "log_probs": log_probs.to(ids.device),
    }


def _sampling(config: ServedConfig, greedy: bool) -> dict[str, Any]:
    generation = config.generation
    request: dict[str, Any] = {"max_tokens": generation.max_tokens, "n": 1, "stream": False, "logprobs": 1}
    # Token ids in either form: a list token_ids, or tokens written as "token_id:7".
    request |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
    if greedy:
        return {**request, "temperature": 0.0}
    top_k = {"top_k": generation.top_k} if generation.top_k else {}  # not a field of OpenAI's own API
    return {**request, "temperature": generation.temperature, "top_p": generation.top_p, **top_k}


def _completion(answer: Mapping[str, Any], length: int) -> tuple[list[int], list[float]]:
    """The tokens of an answer and their log-probs."""
    choice = _choice(answer)
    if choice.get("finish_reason") not in ("stop", "length"):
        raise RequestError(
            "HF913", f"the response ended for the reason {choice.get('finish_reason')!r}, not 'stop' or 'length'"
        )
    logprobs = choice.get("logprobs")
    logprobs = logprobs if isinstance(logprobs, Mapping) else {}
    values, texts = logprobs.get("token_logprobs"), logprobs.get("tokens")
    if not isinstance(values, list):
        raise RequestError("HF913", "the answer has no logprobs.token_logprobs; does the server return log-probs?")
    tokens = choice.get("token_ids")
    if (
        tokens is None
        and isinstance(texts, list)
        and all(re.fullmatch(f"{TOKEN_PREFIX}\\d{{1,10}}", str(text)) for text in texts)
    ):
        tokens = [int(text[len(TOKEN_PREFIX) :]) for text in texts]
    if not isinstance(tokens, list):
        raise RequestError(
            "HF913",
            "the answer has no token_ids, though the request has return_token_ids; texts are not enough, since they "
            "split into tokens in more than one way",
        )
    if len(tokens) != len(values) or not 0 < len(tokens) <= length:
        raise RequestError(
            "HF913",
            f"the answer has {len(tokens)} token{'s' * (len(tokens) != 1)} and {len(values)} "
            f"log-prob{'s' * (len(values) != 1)}, expected as many of each, from 1 to {length}",
        )
    for token in tokens:
        if type(token) is not int or not 0 <= token < 2**31:
            raise RequestError("HF913", f"the answer has the token {token!r}, which is not a token id")
    for place, value in enumerate(values):
        if not isinstance(value, (int, float)) or not LOWEST_LOG_PROB <= value <= 1e-3:
            raise RequestError("HF913", f"the log-prob of token {place} is {value!r}, expected a number up to 0")
    return tokens, [min(float(value), 0.0) for value in values]


class JudgeRequests:
    """The questions to a judge about responses, and the numbers in its answers."""

    def __init__(self, config: JudgeConfig) -> None:
        self._config, self._decode = config, decoder(config.tokenizer)
        self._pattern = re.compile(config.pattern)

    def scores(self, client: Client, prompts: Prompts, sequences: Sequences) -> torch.Tensor:
        """The score of every response, f32[B].

        Raises:
            HfError: HF811 for a row whose task does not fit the question; HF911 to HF913 as for ``Client.ask``.
        """
        width = sequences.response_mask.tensor.shape[1]
        ids, masks = sequences.ids.tensor, sequences.response_mask.tensor
        questions = [row[real].tolist() for row, real in zip(prompts.ids.tensor, prompts.mask.tensor, strict=True)]
        responses = [row[real].tolist() for row, real in zip(ids[:, -width:], masks, strict=True)]
        rows = zip(questions, responses, prompts.task.objects, strict=True)
        bodies = [self._body(row_index, *row) for row_index, row in enumerate(rows)]
        scores = client.ask("chat/completions", bodies, self._score)
        return torch.tensor(scores, dtype=torch.float32, device=ids.device)

    def _body(self, row: int, prompt: list[int], response: list[int], task: Mapping[str, Any]) -> dict[str, Any]:
        config, texts = self._config, {"prompt": self._decode(prompt), "response": self._decode(response)}
        try:
            text = config.question.format(**texts, task=task)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            problem = f"its task does not fit the judge's question {config.question!r}: {type(error).__name__}: {error}"
            raise bad_row(row, problem) from None
        system = [{"role": "system", "content": config.system}] if config.system else []
        fixed = {"temperature": config.temperature, "max_tokens": config.max_tokens, "n": 1, "stream": False}
        return {"messages": [*system, {"role": "user", "content": text}], **fixed, **config.server.extra}

    def _score(self, answer: Mapping[str, Any]) -> float:
        message = _choice(answer).get("message")
        text = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(text, str):
            raise RequestError("HF913", "the answer has no message with a content")
        matches = [match.group(match.lastindex or 0) for match in self._pattern.finditer(text)]
        try:
            score = float(matches[-1])
        except (IndexError, ValueError):
            problem = f"no number of the pattern {self._config.pattern!r} is in the judge's answer"
            raise RequestError("HF913", problem, text) from None
        if not math.isfinite(score):
            raise RequestError("HF913", f"the judge's number is {score}, expected a finite number")
        return score


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        count = len(choices) if isinstance(choices, list) else "no"
        raise RequestError("HF913", f"the answer has {count} choices, expected one")
    return choices[0]
