"""Prompts as texts: the special tokens that a tokenizer adds to them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hfdsl.errors import DataError
from hfdsl.rl.data.prompts import Encoder, Prompt

WORDS = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "<unk>": 4}


def tokenizer(template: str | None, **special: str) -> Any:
    """Words and special tokens, which this template adds to a text ``$A``."""
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template is not None:
        words.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 1)])
    names = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>", **special}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


@pytest.mark.parametrize(("template", "prompt"), [(None, [2, 3]), ("<s> $A", [0, 2, 3])])
def test_a_prompt_begins_as_the_tokenizer_begins_a_text(template: str | None, prompt: list[int]) -> None:
    assert Encoder(Prompt("a {x}"), tokenizer(template), 4).encoded({"x": "b"}, "row 1").prompt == prompt


@pytest.mark.parametrize("template", ["$A </s>", "<s> $A </s>"])
def test_a_tokenizer_that_ends_every_text_is_refused(template: str) -> None:
    """What a policy adds behind an end token, it has never been trained to add."""
    with pytest.raises(DataError, match=r"HF904: the tokenizer adds its end token '</s>' to every text"):
        Encoder(Prompt("a {x}"), tokenizer(template), 4)


def test_an_end_token_that_is_also_that_of_unknown_texts_proves_nothing() -> None:
    words = tokenizer("<s> $A", eos_token="<unk>")
    words.backend_tokenizer.model = models.WordLevel({k: v for k, v in WORDS.items() if k != "a"}, unk_token="<unk>")
    assert Encoder(Prompt("{x}"), words, 4).encoded({"x": "b"}, "row 1").prompt == [0, 3]
