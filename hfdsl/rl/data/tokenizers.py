"""Tokenizers: any on Hugging Face, or one token per character for a model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from hfdsl.errors import DataError
from hfdsl.rl.hub import fetched, hub_name

SPECIAL = ("<pad>", "<end>", "<unknown>")


@dataclass(frozen=True, slots=True)
class Characters:
    """One token per character; tokens 0, 1 and 2 are padding, the end of a response, and unknown characters.

    >>> Characters("abc").size
    6
    """

    alphabet: str
    """The characters, each once; the first is token 3."""

    lowercase: bool = False
    """Whether texts are converted to lower case first."""

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) != len(self.alphabet) or not self.alphabet:
            raise DataError("HF904", f"an alphabet has every character once, got {self.alphabet!r}")

    @property
    def size(self) -> int:
        """The number of tokens: the ``vocab_size`` of a model."""
        return len(SPECIAL) + len(self.alphabet)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The number of every token."""
        return {token: number for number, token in enumerate((*SPECIAL, *self.alphabet))}

    def normalized(self, text: str) -> str:
        """The text whose characters are the tokens of a text."""
        return "".join(character.lower() for character in text) if self.lowercase else text


@dataclass(frozen=True, slots=True)
class CharacterTokenizer:
    """The tokenizer of ``Characters`` for an ``Encoder``, without packages, which a check does not load.

    >>> CharacterTokenizer(Characters("abc"))("cad", add_special_tokens=True)["input_ids"]
    [5, 3, 2]
    """

    characters: Characters
    chat_template: ClassVar[str | None] = None
    pad_token_id: ClassVar[int] = SPECIAL.index("<pad>")
    eos_token_id: ClassVar[int] = SPECIAL.index("<end>")
    unk_token_id: ClassVar[int] = SPECIAL.index("<unknown>")
    bos_token_id: ClassVar[int | None] = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        """The tokens of a text; there are no special ones to add."""
        numbers = self.characters.vocabulary
        return {"input_ids": [numbers.get(token, self.unk_token_id) for token in self.characters.normalized(text)]}


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A saved tokenizer."""

    path: str
    """The folder that ``save_pretrained`` wrote, or a name on the Hugging Face hub, as in ``ModelConfig``."""

    pad_token: str | None = None
    """The text of the token to pad with, for a tokenizer without one."""


Tokenizer: TypeAlias = Characters | Pretrained


@cache
def load_tokenizer(tokenizer: Tokenizer) -> Any:
    """The ``transformers`` tokenizer of a configuration, with a pad token.

    Raises:
        DataError: HF904 if there is none at the path, or it has no padding.

    >>> load_tokenizer(Characters("abc"))("cab")["input_ids"]
    [5, 3, 4]
    >>> load_tokenizer(Characters("abc")).decode([5, 3, 1, 0], skip_special_tokens=True)
    'ca'
    """
    return _characters(tokenizer) if isinstance(tokenizer, Characters) else _pretrained(tokenizer)


def _characters(tokenizer: Characters) -> Any:
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

    pad, end, unknown = SPECIAL
    fast = Fast(models.WordLevel(tokenizer.vocabulary, unknown))
    if tokenizer.lowercase:
        fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token=pad, eos_token=end, unk_token=unknown)


def _pretrained(tokenizer: Pretrained) -> Any:
    from transformers import AutoTokenizer

    if hub_name(tokenizer.path) is None and not Path(tokenizer.path).is_dir():
        raise DataError("HF904", f"there is no tokenizer folder '{tokenizer.path}'; save one with save_pretrained")
    try:
        loaded = AutoTokenizer.from_pretrained(fetched(tokenizer.path, weights=False))
    except Exception as error:  # noqa: BLE001  # a tokenizer's files can be wrong in any way
        raise DataError("HF904", f"no tokenizer can be read from '{tokenizer.path}': {error}") from None
    if tokenizer.pad_token is not None:
        if tokenizer.pad_token not in loaded.get_vocab():
            raise DataError(
                "HF904", f"the tokenizer in '{tokenizer.path}' has no token {tokenizer.pad_token!r} to pad with"
            )
        loaded.pad_token = tokenizer.pad_token
    if loaded.pad_token_id is None:
        end = f", for example its end of sequence {loaded.eos_token!r}" if loaded.eos_token else ""
        raise DataError(
            "HF904", f"the tokenizer in '{tokenizer.path}' has no padding token; name one with pad_token{end}"
        )
    return loaded
