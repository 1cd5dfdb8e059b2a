"""From rows to prompts: a text from a template, its tokens, and padding on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any

from hfdsl.errors import DataError
from hfdsl.rl.data.sources import Row
from hfdsl.types.batches import closest

if TYPE_CHECKING:
    from hfdsl.rl.batches import Prompts, Sequences


@dataclass(frozen=True, slots=True)
class Prompt:
    """How a row's fields become a prompt: ``"{question}"``, ``"{metadata[word]}>"``."""

    text: str = "{question}"
    """The template of the prompt, over the fields of a row."""

    answer: str = "{answer}"
    """The template of the response to imitate, for dataflows that take demonstrations."""

    chat: bool = False
    """Whether the text is a user's message in the tokenizer's chat template, as models tuned on chats need it."""

    system: str | None = None
    """The system message before it; needs ``chat``."""

    def __post_init__(self) -> None:
        if self.system is not None and not self.chat:
            raise DataError("HF902", "a prompt with a system text is a conversation: set chat = true")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row and its tokens."""

    row: Row
    prompt: list[int]
    response: list[int]
    """The response to imitate; empty where there is none."""


class Encoder:
    """Encodes rows to a batch: ``Prompts`` of ``length`` tokens, or ``Sequences`` with ``response`` more for an answer.

    Raises:
        DataError: HF904 for chats with a tokenizer that has no chat template.
    """

    def __init__(self, prompt: Prompt, tokenizer: Any, length: int, response: int | None = None) -> None:
        self._prompt, self._tokenizer, self._length, self._response = prompt, tokenizer, length, response
        if prompt.chat and not tokenizer.chat_template:
            raise DataError("HF904", "the tokenizer has no template for conversations; set chat = false")

    def text(self, row: Row, place: str) -> str:
        """The text of a row's prompt.

        Raises:
            DataError: HF902 for a row without one of the fields.
        """
        return _formatted(self._prompt.text, row, place)

    def encoded(self, row: Row, place: str) -> Encoded:
        """A row's tokens.

        Raises:
            DataError: HF902 for a row without one of the fields, and for characters that the tokenizer does not know;
                HF903 for a prompt or an answer that is too long.
        """
        text = self.text(row, place)
        prompt = self._tokens(self._chat(text) if self._prompt.chat else text, place, special=not self._prompt.chat)
        if not prompt:
            raise DataError("HF902", f"{place}: its prompt has no tokens")
        _check_length(prompt, self._length, "prompt", "P", text, place)
        if self._response is None:
            return Encoded(row, prompt, [])
        answer = _formatted(self._prompt.answer, row, place)
        response = [*self._tokens(answer, place, special=False), int(self._tokenizer.eos_token_id)]
        _check_length(response, self._response, "answer, with its end,", "R", answer, place)
        return Encoded(row, prompt, response)

    def batch(self, rows: Sequence[Encoded]) -> Prompts | Sequences:
        """A batch; prompts are padded on the left, responses on the right."""
        import torch

        from hfdsl.rl.batches import Prompts, Sequences

        width, pad = self._length + (self._response or 0), int(self._tokenizer.pad_token_id)
        ids = torch.full((len(rows), width), pad, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):
            start, tokens = self._length - len(row.prompt), [*row.prompt, *row.response]
            ids[i, start : start + len(tokens)] = torch.tensor(tokens)
            mask[i, start : start + len(tokens)] = True
        if self._response is None:
            return Prompts(ids=ids, mask=mask, task=[row.row for row in rows])
        return Sequences(ids=ids, mask=mask, response_mask=mask[:, self._length :].clone())

    def _chat(self, text: str) -> str:
        messages = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        messages.append({"role": "user", "content": text})
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _tokens(self, text: str, place: str, *, special: bool) -> list[int]:
        tokens = [int(token) for token in self._tokenizer(text, add_special_tokens=special)["input_ids"]]
        tokenizer, unknown = self._tokenizer, self._tokenizer.unk_token_id
        # Some tokenizers use their end-of-sequence token for unknown text too; there it says nothing.
        special_ids = (None, tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        if unknown not in special_ids and unknown in tokens:
            raise DataError("HF902", f"{place}: the tokenizer does not know all of {text!r}")
        return tokens


def _formatted(template: str, row: Row, place: str) -> str:
    """A template, formatted with a row's fields."""
    for _, name, _, _ in Formatter().parse(template):
        first = (name or "").partition("[")[0].partition(".")[0]
        if name and first not in row:
            raise DataError("HF902", f"{place}: the row has no field '{first}'; {closest(first, list(row))}")
    try:
        return template.format_map(row)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError("HF902", f"{place}: the row does not fit {template!r}: {problem}") from None


def _check_length(tokens: Sequence[int], limit: int, part: str, dim: str, text: str, place: str) -> None:
    if len(tokens) > limit:
        raise DataError(
            "HF903", f"{place}: its {part} has {len(tokens)} tokens, where {dim} = {limit} is the most: {text!r:.80}"
        )
