"""The configuration of roles whose model a server holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from string import Formatter
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlsplit

from hfdsl.rl.data.tokenizers import Tokenizer
from hfdsl.rl.fields import Count, Limit, NonNegative, check_fields
from hfdsl.rl.workers.model_config import GenerationConfig
from hfdsl.types.bounds import Within
from hfdsl.types.numbers import brief

Decoder: TypeAlias = Callable[[list[int]], str]

QUESTION_FIELDS: Final = ("prompt", "response", "task")
"""The names that a judge's question may take."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A server that speaks the OpenAI API, such as vLLM's or SGLang's."""

    url: str
    """The address of the server with the API's version, ``"http://host:port/v1"``."""

    model: str
    """The name of the model, as the server knows it."""

    timeout: Limit = 120.0
    """The most seconds of one request. A response of thousands of tokens on a busy server can take minutes."""

    patience: Annotated[float, Within(at_least=0, infinite=True)] = 300.0
    """The most seconds of a request with its retries, if the server is busy or unreachable; 0 for a single try."""

    concurrency: Count = 32
    """The most open requests of a rank, which the server batches; usually 16 to 256."""

    api_key: str | None = None
    """The name of the environment variable that holds the key; never the key itself."""

    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of every request, such as ``{"repetition_penalty": 1.1}``; they override those of the role."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["url"] = without_credentials(self.url)
        return f"ServerConfig({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def without_credentials(url: str) -> str:
    """An address without user, password and query, for a message.

    >>> without_credentials("https://user:password@host:8000/v1?key=1"), without_credentials("user:password@host")
    ('https://***@host:8000/v1', '***@host')
    """
    address = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, slashes, location = address.rpartition("//")
    _, at, host = location.rpartition("@")
    return f"{scheme}{slashes}***@{host}" if at else address


def address_problem(url: str) -> str | None:
    """Why an address is not that of a server, for the check and for a role's constructor; None for one that may be.

    >>> address_problem("http://localhost:8000/v1") is None
    True
    >>> print(address_problem("localhost:8000"))
    a ServerConfig needs url="http://host:port/v1" or one with https, got 'localhost:8000'
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_valid = False
    if is_valid and url.isascii() and url.isprintable() and " " not in url:
        return None
    expected = 'a ServerConfig needs url="http://host:port/v1" or one with https'
    return f"{expected}, got {without_credentials(url)!r}"


@dataclass(frozen=True, slots=True)
class ServedConfig:
    """A policy on a server. Prompts and responses travel as tokens, so all roles must have its tokenizer."""

    server: ServerConfig
    """The server and its model."""

    generation: GenerationConfig
    """How it samples; ``engine`` and the cache are the server's own."""

    pad_token: int
    """The token that fills a response after its end."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    """A judge on a server: the question about a response, and the pattern of the score in the answer."""

    server: ServerConfig
    """The server and its model."""

    question: str
    """A template over ``{prompt}``, ``{response}`` and ``{task[...]}``."""

    tokenizer: Decoder | Tokenizer | str
    """The decoder of the tokens of prompts and responses, as in ``VerifierConfig``."""

    system: str | None = None
    """The system message before the question; None sends none."""

    pattern: str = r"-?\d+(?:\.\d+)?"
    """A regular expression whose last match in the answer is the score, or the last group of that match. The default
    takes the last number."""

    temperature: NonNegative = 0.0
    """The judge's temperature; 0 makes scores repeatable."""

    max_tokens: Count = 512
    """The most tokens of the judge's answer; a judge that reasons before it scores needs more."""

    def __post_init__(self) -> None:
        check_fields(self)


def pattern_problem(pattern: str) -> str | None:
    """Why a text is not a regular expression, for the check and for a role's constructor; None for one.

    >>> pattern_problem("score: ([0-9]+)"), pattern_problem("score: ([0-9]+")
    (None, "a JudgeConfig has pattern='score: ([0-9]+': missing ), unterminated subpattern at position 7")
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"a JudgeConfig has pattern={brief(pattern)}: {error}"
    return None


def question_problem(question: str) -> str | None:
    """Why no text can be formed by a judge's question, for the check and for a role's constructor; None if one may be.

    >>> question_problem("{prompt}: {task[answer]} or {response}?"), question_problem("{promt}")
    (None, "a JudgeConfig has question='{promt}': there is no {promt}; it takes {prompt}, {response} and {task[...]}")
    """
    try:
        names = [re.split(r"[.\[]", name, maxsplit=1)[0] for name in _names(question)]
    except ValueError as error:
        return f"a JudgeConfig has question={brief(question)}: {error}"
    unknown = next((name for name in names if name not in QUESTION_FIELDS), None)
    if unknown is None:
        return None
    takes = "it takes {prompt}, {response} and {task[...]}"
    return f"a JudgeConfig has question={brief(question)}: there is no {{{unknown}}}; {takes}"


def _names(template: str) -> Iterator[str]:
    """The names in a template, also in its formats."""
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            yield name
            yield from _names(form or "")
