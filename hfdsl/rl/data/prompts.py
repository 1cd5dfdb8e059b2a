"""From rows to prompts: a text by a template, its tokens, and padding on the left."""

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
    """How the text of a prompt is made of a row's fields: ``"{question}"``, ``"{metadata[word]}>"``.

    With ``chat`` the text is what a user says, in the form that the tokenizer has for conversations, after what
    ``system`` says. ``answer`` is the response to imitate, where a dataflow takes demonstrations.
    """

    text: str = "{question}"
    answer: str = "{answer}"
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        if self.system is not None and not self.chat:
            raise DataError("HF902", "a prompt with a system text is a conversation: set chat = true")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row with the tokens of its prompt, and of its response where there is one to imitate."""

    row: Row
    prompt: list[int]
    response: list[int]


class Encoder:
    """Rows to a batch: ``Prompts`` of ``length`` tokens, or with ``response`` tokens for an answer, ``Sequences``.

    Raises:
        DataError: HF904 for conversations by a tokenizer without a form for them.
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
        return _filled(self._prompt.text, row, place)

    def encoded(self, row: Row, place: str) -> Encoded:
        """A row's tokens.

        Raises:
            DataError: HF902 for a row without one of the fields, and for characters that the tokenizer does not know;
                HF903 for a prompt or an answer that is too long.
        """
        text = self.text(row, place)
        prompt = self._tokens(self._said(text) if self._prompt.chat else text, place, special=not self._prompt.chat)
        if not prompt:
            raise DataError("HF902", f"{place}: its prompt has no tokens")
        _short_enough(prompt, self._length, "prompt", "P", text, place)
        if self._response is None:
            return Encoded(row, prompt, [])
        answer = _filled(self._prompt.answer, row, place)
        response = [*self._tokens(answer, place, special=False), int(self._tokenizer.eos_token_id)]
        _short_enough(response, self._response, "answer, with its end,", "R", answer, place)
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

    def _said(self, text: str) -> str:
        said = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        said.append({"role": "user", "content": text})
        return str(self._tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False))

    def _tokens(self, text: str, place: str, *, special: bool) -> list[int]:
        tokens = [int(token) for token in self._tokenizer(text, add_special_tokens=special)["input_ids"]]
        unknown, known = self._tokenizer.unk_token_id, self._tokenizer
        if unknown not in (None, known.eos_token_id, known.bos_token_id, known.pad_token_id) and unknown in tokens:
            raise DataError("HF902", f"{place}: the tokenizer does not know all of {text!r}")
        return tokens


def _filled(template: str, row: Row, place: str) -> str:
    """A template with a row's fields in it."""
    for _, name, _, _ in Formatter().parse(template):
        first = (name or "").partition("[")[0].partition(".")[0]
        if name and first not in row:
            raise DataError("HF902", f"{place}: the row has no field '{first}'; {closest(first, list(row))}")
    try:
        return template.format_map(row)
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        raise DataError("HF902", f"{place}: the row does not fit {template!r}: {told}") from None


def _short_enough(tokens: Sequence[int], most: int, what: str, dim: str, text: str, place: str) -> None:
    if len(tokens) > most:
        raise DataError(
            "HF903", f"{place}: its {what} has {len(tokens)} tokens, where {dim} = {most} is the most: {text!r:.80}"
        )
