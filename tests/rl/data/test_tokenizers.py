"""Tokenizers of characters: with and without packages alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.data.tokenizers import Characters, CharacterTokenizer, load_tokenizer

NUMBERS = ("pad_token_id", "eos_token_id", "unk_token_id", "bos_token_id", "chat_template")


@given(st.text(min_size=1), st.booleans())
def test_a_check_knows_the_tokens_of_a_run(text: str, lowercase: bool) -> None:
    characters = Characters("abcé0 ", lowercase)
    tokenizer, loaded = CharacterTokenizer(characters), load_tokenizer(characters)
    assert tokenizer(text, add_special_tokens=True) == {"input_ids": loaded(text)["input_ids"]}
    assert [getattr(tokenizer, name) for name in NUMBERS] == [getattr(loaded, name) for name in NUMBERS]
