"""Conversations: lists of messages in a field of a row, and their text by a tokenizer's chat template.

A prompt ends where the model is to answer::

    {"messages": [{"role": "user", "content": "2 + 2?"},
                  {"role": "assistant", "content": "4."},
                  {"role": "user", "content": "And 3 + 3?"}]}

    <user>2 + 2?<end><assistant>4.<end><user>And 3 + 3?<end><assistant>
                                                            the generation prompt

A demonstration ends with the assistant's answer. The template writes it twice, without its last message and with it;
what the second text adds is the response, up to and including its last end token::

    <user>2 + 2?<end><assistant>        the prompt
    <user>2 + 2?<end><assistant>4.<end> with the answer: the response is "4.<end>"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.errors import DataError
from hfdsl.rl.data.sources import Row
from hfdsl.types.similar_names import closest

Message: TypeAlias = dict[str, Any]
"""A message: ``role``, ``content``, and any other key that the chat template reads, such as ``tool_calls``."""

Tools: TypeAlias = tuple[dict[str, Any], ...]
"""Tools that the model may call, as JSON schemas of functions."""

ASSISTANT, SYSTEM = "assistant", ("system", "developer")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the tools that they may call, and further arguments of the chat template."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    arguments: Mapping[str, Any]

    @property
    def is_answered(self) -> bool:
        """Whether it ends with a message of the assistant."""
        return bool(self.messages[-1]["role"] == ASSISTANT)

    def text(self, tokenizer: Any, place: str, *, complete: bool = False) -> str:
        """The text by the chat template, up to where the assistant answers; all of it if ``complete``.

        Raises:
            DataError: HF902 for a conversation that the template refuses.
        """
        try:
            text = tokenizer.apply_chat_template(
                self.messages,
                tools=self.tools,
                add_generation_prompt=not complete,
                tokenize=False,
                **self.arguments,
            )
        except Exception as error:  # noqa: BLE001  # a template is a program, which may raise anything
            problem = f"{type(error).__name__}: {error}"
            raise DataError("HF902", f"{place}: the chat template rejects the conversation: {problem}") from None
        if not isinstance(text, str):
            raise DataError("HF902", f"{place}: the chat template returned {type(text).__name__}, expected a text")
        return text

    def prompt_and_answer(self, tokenizer: Any, place: str) -> tuple[str, str]:
        """The text before the assistant's last message, and that of the message without its end token.

        Raises:
            DataError: HF902 for a conversation that ends with another role, or whose template writes the messages
                before the last one differently with it than without it.
        """
        if not self.is_answered or len(self.messages) == 1:
            raise DataError(
                "HF902", f"{place}: a demonstration is a conversation that ends with the assistant's answer to another"
            )
        prompt = Conversation(self.messages[:-1], self.tools, self.arguments).text(tokenizer, place)
        text = self.text(tokenizer, place, complete=True)
        if not text.startswith(prompt):
            raise DataError(
                "HF902",
                f"{place}: with the last message, the chat template renders the earlier ones differently than "
                f"without: {prompt[-40:]!r} is not in {text[-80:]!r}",
            )
        tail = text[len(prompt) :]
        answer, end, _ = tail.rpartition(tokenizer.eos_token)
        return prompt, answer if end else tail


def messages_of(row: Row, field: str, place: str) -> list[Message]:
    """The messages in a row's field.

    Raises:
        DataError: HF902 for a row without the field, or with anything but a list of messages with texts in it.
    """
    messages = _list(row, field, place, "messages")
    if not messages:
        raise DataError("HF902", f"{place}: its field '{field}' has no messages")
    return [_message(message, f"{place}: '{field}[{i}]'") for i, message in enumerate(messages)]


def with_system(messages: list[Message], text: str | None) -> list[Message]:
    """The messages, after a system message if there is a text for one and they do not begin with one.

    >>> with_system([{"role": "user", "content": "2 + 2?"}], "Be brief.")[0]
    {'role': 'system', 'content': 'Be brief.'}
    """
    if text is None or messages[0]["role"] in SYSTEM:
        return messages
    return [{"role": SYSTEM[0], "content": text}, *messages]


def tools_of(row: Row, tools: str | Tools | None, place: str) -> list[dict[str, Any]] | None:
    """The tools of a row, from its field of that name or from a list for all rows; None if there are none.

    Raises:
        DataError: HF902 for a row without the field, or with anything but a list of objects in it.
    """
    if tools is None or (isinstance(tools, str) and row.get(tools, ()) is None):
        return None
    definitions = _list(row, tools, place, "tools") if isinstance(tools, str) else list(tools)
    for i, tool in enumerate(definitions):
        if not isinstance(tool, Mapping):
            raise DataError(
                "HF902", f"{place}: '{tools}[{i}]' is {kind_in_words(tool)}, expected an object with a tool"
            )
    return [dict(tool) for tool in definitions] or None


def _list(row: Row, field: str, place: str, of: str) -> list[Any]:
    if field not in row:
        raise DataError("HF902", f"{place}: the row has no field '{field}'; {closest(field, list(row))}")
    value = row[field]
    if not isinstance(value, (list, tuple)):
        raise DataError("HF902", f"{place}: its field '{field}' is {kind_in_words(value)}, expected a list of {of}")
    return list(value)


def _message(message: Any, label: str) -> Message:
    """A message with a role, and with a text unless it calls tools."""
    if not isinstance(message, Mapping):
        raise DataError("HF902", f"{label} is {kind_in_words(message)}, expected an object with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        problem = f"is {kind_in_words(role)}" if "role" in message else "is missing"
        raise DataError("HF902", f"{label}: 'role' {problem}, expected a text such as 'user'")
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        problem = f"is {kind_in_words(content)}" if "content" in message else "is missing"
        raise DataError("HF902", f"{label}: 'content' {problem}, expected a text")
    # Tables such as parquet have every key in every message, with None for those that the message lacks.
    return {str(key): value for key, value in message.items() if value is not None or key == "content"}


def kind_in_words(value: Any) -> str:
    """The description of a value of a wrong kind, for an error.

    >>> kind_in_words(None), kind_in_words([1, 2]), kind_in_words({"a": 1})
    ('None', 'a list', 'an object')
    """
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, (list, tuple)) else f"of type {type(value).__name__}"
