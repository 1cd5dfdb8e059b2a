"""From rows to prompts: a text from a template or a conversation, its tokens, and padding on the left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import TYPE_CHECKING, Any

from hfdsl.errors import DataError
from hfdsl.rl.data.conversations import Conversation, Message, Tools, kind_in_words, messages_of, tools_of, with_system
from hfdsl.rl.data.sources import Row
from hfdsl.rl.fields import check_fields
from hfdsl.types.foreign_text import is_unicode
from hfdsl.types.similar_names import closest

if TYPE_CHECKING:
    from hfdsl.rl.batches import Pairs, Prompts, Sequences


@dataclass(frozen=True, slots=True)
class Prompt:
    """The rule from a row's fields to a prompt: a template such as ``"{metadata[word]}>"``, or a field of messages."""

    text: str = "{question}"
    """The template of the prompt, over the fields of a row, which are texts or numbers."""

    answer: str = "{answer}"
    """The template of the response to imitate, for dataflows that take demonstrations; of a pair, the better one."""

    rejected: str = "{rejected}"
    """The template of the worse response, for dataflows that take pairs."""

    chat: bool = False
    """Whether the tokenizer's chat template wraps the text as a user's message, which chat models need."""

    system: str | None = None
    """The system message before the prompt, unless its messages begin with one; needs ``chat`` or ``messages``."""

    messages: str | None = None
    """The field of a conversation: a list of ``{"role": ..., "content": ...}``, which the chat template writes. It
    replaces ``text``; in a demonstration, the last message, the assistant's, replaces ``answer``."""

    rejected_messages: str = "rejected"
    """With ``messages``, for dataflows that take pairs: the field of the same conversation with the worse response at
    its end."""

    tools: str | Tools | None = None
    """The tools for the chat template, as JSON schemas of functions: the field of a row that lists its own, or the
    tools of all rows; needs ``chat`` or ``messages``."""

    template_arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the chat template, such as ``{ enable_thinking = false }``."""

    def __post_init__(self) -> None:
        check_fields(self)
        settings = {
            "a system text": self.system is not None,
            "tools": self.tools is not None,
            "template arguments": bool(self.template_arguments),
        }
        named = next((name for name, is_set in settings.items() if is_set), None)
        if named is not None and not self.chat and self.messages is None:
            raise DataError(
                "HF902",
                f"a prompt with {named} is a conversation: set chat = true, or name the field of the messages",
            )


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row and its tokens."""

    row: Row
    prompt: list[int]
    responses: tuple[list[int], ...] = ()
    """The response to imitate, or the better and the worse response of a pair."""


class Encoder:
    """Encodes rows as a batch: ``length`` tokens for a prompt, and ``response`` tokens for an answer, if not None.

    Prompts alone become ``Prompts``; with answers, ``Sequences``; with ``pairs``, ``Pairs``, two rows for each of the
    data.

    Raises:
        DataError: HF904 for conversations if the tokenizer has no chat template, for answers if it has no end token,
            and for a tokenizer that ends prompts with its end token.
    """

    def __init__(
        self, prompt: Prompt, tokenizer: Any, length: int, response: int | None = None, *, pairs: bool = False
    ) -> None:
        self._prompt, self._tokenizer, self._length, self._response = prompt, tokenizer, length, response or 0
        self._responses = 0 if response is None else 2 if pairs else 1
        self._chat = prompt.chat or prompt.messages is not None
        if self._chat and not tokenizer.chat_template:
            fix = "set chat = false" if prompt.messages is None else "set its chat_template, or write prompt.text"
            raise DataError("HF904", f"the tokenizer has no template for conversations; {fix}")
        if response is not None and tokenizer.eos_token_id is None:
            raise DataError("HF904", "the tokenizer has no end-of-sequence token, with which an answer ends")
        if not self._chat and _ends_texts(tokenizer):
            raise DataError(
                "HF904",
                f"the tokenizer adds its end token {tokenizer.eos_token!r} to every text, and nothing follows a prompt "
                "that has ended; set add_eos_token to false in its tokenizer_config.json",
            )

    def text(self, row: Row, place: str) -> str:
        """The text that two rows with the same prompt share.

        Raises:
            DataError: HF902 for a row that lacks a field, or a field without a text or messages.
        """
        if self._prompt.messages is None:
            return formatted(self._prompt.text, row, place)
        conversation = self._conversation(messages_of(row, self._prompt.messages, place), row, place)
        messages = conversation.messages[:-1] if conversation.is_answered else conversation.messages
        return json.dumps([messages, conversation.tools], ensure_ascii=False, sort_keys=True, default=repr)

    def encoded(self, row: Row, place: str) -> Encoded:
        """A row's tokens.

        Raises:
            DataError: HF902 for a row that lacks a field, a field without a text or messages, a conversation that the
                dataflow or the chat template does not take, and characters that the tokenizer does not know; HF903 for
                a prompt or an answer that is too long.
        """
        text, answers = self._texts(row, place)
        prompt = self._tokens(text, place, special=not self._chat)
        if not prompt:
            raise DataError("HF902", f"{place}: its prompt has no tokens")
        _check_length(prompt, self._length, "prompt", "P", text, place)
        return Encoded(row, prompt, tuple(self._response_tokens(answer, place) for answer in answers))

    def _response_tokens(self, answer: str, place: str) -> list[int]:
        response = [*self._tokens(answer, place, special=False), int(self._tokenizer.eos_token_id)]
        _check_length(response, self._response, "answer, with its end,", "R", answer, place)
        return response

    def _texts(self, row: Row, place: str) -> tuple[str, tuple[str, ...]]:
        """The prompt and the responses as the tokenizer reads them."""
        if self._prompt.messages is None:
            text = formatted(self._prompt.text, row, place)
            if self._chat:
                text = self._conversation([{"role": "user", "content": text}], row, place).text(self._tokenizer, place)
            templates = (self._prompt.answer, self._prompt.rejected)[: self._responses]
            return text, tuple(formatted(template, row, place) for template in templates)
        fields = (self._prompt.messages, self._prompt.rejected_messages)[: max(self._responses, 1)]
        conversations = [self._conversation(messages_of(row, name, place), row, place) for name in fields]
        if self._responses:
            texts = [conversation.prompt_and_answer(self._tokenizer, place) for conversation in conversations]
            prompts, answers = zip(*texts, strict=True)
            if len(set(prompts)) > 1:
                named = " and ".join(f"'{name}'" for name in fields)
                raise DataError("HF902", f"{place}: the conversations {named} differ before their last messages")
            return prompts[0], answers
        conversation = conversations[0]
        if conversation.is_answered:
            raise DataError(
                "HF902", f"{place}: the conversation ends with the assistant's answer; a prompt ends before it"
            )
        return conversation.text(self._tokenizer, place), ()

    def _conversation(self, messages: list[Message], row: Row, place: str) -> Conversation:
        prompt = self._prompt
        tools = tools_of(row, prompt.tools, place)
        return Conversation(with_system(messages, prompt.system), tools, prompt.template_arguments)

    def batch(self, rows: Sequence[Encoded]) -> Prompts | Sequences | Pairs:
        """A batch of rows, with prompts padded on the left and responses on the right.

        The better response of a pair comes first; if both are equal, neither is preferred.
        """
        import torch

        from hfdsl.rl.batches import Pairs, Prompts, Sequences

        filled = [(row.prompt, response) for row in rows for response in row.responses or ([],)]
        width, pad = self._length + self._response, int(self._tokenizer.pad_token_id)
        ids = torch.full((len(filled), width), pad, dtype=torch.int64)
        mask = torch.zeros(len(filled), width, dtype=torch.bool)
        for i, (prompt, response) in enumerate(filled):
            start, tokens = self._length - len(prompt), [*prompt, *response]
            ids[i, start : start + len(tokens)] = torch.tensor(tokens)
            mask[i, start : start + len(tokens)] = True
        if not self._responses:
            return Prompts(ids=ids, mask=mask, task=[row.row for row in rows])
        response_mask = mask[:, self._length :].clone()
        if self._responses == 1:
            return Sequences(ids=ids, mask=mask, response_mask=response_mask)
        pairs = [row.responses for row in rows]
        preference = torch.tensor([float(sign * (better != worse)) for better, worse in pairs for sign in (1, -1)])
        return Pairs(ids=ids, mask=mask, response_mask=response_mask, preference=preference)

    def _tokens(self, text: str, place: str, *, special: bool) -> list[int]:
        if not is_unicode(text):
            raise DataError("HF902", f"{place}: a text with half of a surrogate pair is not Unicode: {text!r:.80}")
        tokens = [int(token) for token in self._tokenizer(text, add_special_tokens=special)["input_ids"]]
        tokenizer, unknown = self._tokenizer, self._tokenizer.unk_token_id
        # Some tokenizers also use their end-of-sequence token for unknown text; then its presence proves nothing.
        special_ids = (None, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        if unknown not in special_ids and unknown in tokens:
            raise DataError("HF902", f"{place}: the tokenizer does not know all of {text!r}")
        return tokens


def _ends_texts(tokenizer: Any) -> bool:
    """Whether a tokenizer adds its end token behind a text, as some do for training."""
    plain, special = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    return len(special) > len(plain) and special[-1] == tokenizer.eos_token_id != [None, *plain][-1]


def formatted(template: str, row: Row, place: str) -> str:
    """A template, formatted with a row's fields, which are texts or numbers.

    Raises:
        DataError: HF902 for a row that lacks a field, or a field that is neither.
    """
    try:
        for _, name, _, conversion in Formatter().parse(template):
            root = (name or "").partition("[")[0].partition(".")[0]
            if name and root not in row:
                raise DataError("HF902", f"{place}: the row has no field '{root}'; {closest(root, list(row))}")
            if name and conversion is None:
                _check_text(Formatter().get_field(name, (), row)[0], name, place)
        return template.format_map(row)
    except DataError:
        raise
    except (KeyError, IndexError, AttributeError, TypeError, ValueError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError("HF902", f"{place}: the row does not fit {template!r}: {problem}") from None


def _check_text(value: Any, field: str, place: str) -> None:
    """Refuse a value that is not a text or number: the ``str`` of a list or of None is never meant."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return
    is_conversation = isinstance(value, list) and value and all(isinstance(message, dict) for message in value)
    hint = f"; for a list of messages set prompt.messages = '{field}'" if is_conversation else ""
    raise DataError("HF902", f"{place}: its field '{field}' is {kind_in_words(value)}, expected a text{hint}")


def _check_length(tokens: Sequence[int], limit: int, part: str, dim: str, text: str, place: str) -> None:
    if len(tokens) > limit:
        raise DataError(
            "HF903", f"{place}: its {part} has {len(tokens)} tokens, more than {dim} = {limit}: {text!r:.80}"
        )
