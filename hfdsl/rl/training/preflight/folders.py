"""The folders of models and tokenizers, read as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfdsl.check.findings import Finding
from hfdsl.rl.data.tokenizers import Characters, Pretrained
from hfdsl.rl.hub import download_command, hub_name, is_offline, local_folder
from hfdsl.rl.training.preflight.sources import beside_the_output, near_paths, renamed_path
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.saved_folders import WEIGHTS, has_weights, incomplete_shards
from hfdsl.types.foreign_text import parse_object

TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip  # a list of names
LFS = b"version https://git-lfs"


def models_are_there(subject: Subject) -> Iterator[Finding]:
    """The folder of every saved model has a configuration and weights."""
    for field, model in subject.parts(ModelConfig):
        if model.path is not None:
            yield from _model(subject, f"{field}.path", model.path)


def _model(subject: Subject, field: str, text: str) -> Iterator[Finding]:
    path = local_folder(text)
    if not path.is_dir() or (hub_name(text) is not None and not has_weights(path)):
        yield _no_folder(subject, "HF812", "model", field, text)
    elif not (path / "config.json").is_file():
        changes, advice = _not_a_model(field, path)
        message = f"there is no model in '{path}': no config.json in it"
        yield subject.finding("HF812", message, field, changes=changes, advice=advice)
    elif not has_weights(path):
        yield subject.finding(
            "HF812",
            f"there are no weights in '{path}': no .safetensors or .bin file",
            field,
            notes=("download the folder again, or save the model with save_pretrained",),
        )
    elif (pointer := _pointer(path)) is not None:
        yield subject.finding(
            "HF812",
            f"'{pointer}' is a Git LFS pointer, not the weights themselves",
            field,
            notes=(f"git -C {path} lfs pull",),
        )
    elif (shards := incomplete_shards(path)) and (missing := [name for name in shards if not (path / name).is_file()]):
        named = f"{missing[0]} is missing" if len(missing) == 1 else f"{missing[0]} and others are missing"
        present, count = len(shards) - len(missing), len(shards)
        yield subject.finding(
            "HF812",
            f"'{path}' has {present} of the {count} files of weights that its index names: {named}",
            field,
            notes=("download the folder again: the last download was not completed",),
        )


def _not_a_model(field: str, path: Path) -> tuple[tuple[SetField, ...], str]:
    """The help for a folder without a model: the path of a model inside it, or advice."""
    if (path / "checkpoints").is_dir():
        return (), f"it is the folder of a run; save its model with: hfdsl export {path} -o FOLDER"
    if (path / "adapter_config.json").is_file():
        return (), "it has an adapter alone; merge the adapter into its base model, and save that"
    inner = sorted(entry.parent for entry in path.glob("*/config.json"))
    return renamed_path(field, inner) if len(inner) == 1 else ((), "save a model with save_pretrained")


def _pointer(path: Path) -> Path | None:
    """A file of weights that is only a pointer of Git LFS."""
    for file in sorted(file for pattern in WEIGHTS[:2] for file in path.glob(pattern)):
        if file.stat().st_size < 1024 and file.read_bytes().startswith(LFS):
            return file
    return None


def _no_folder(subject: Subject, code: str, kind: str, field: str, text: str) -> Finding:
    """The finding for a missing folder, or for a name on the Hugging Face hub that this machine's cache lacks."""
    path, named = Path(text), hub_name(text)
    paths = near_paths(subject, path)
    if paths or named is None or beside_the_output(subject, path):
        changes, advice = renamed_path(field, paths)
        advice = advice or f"save the {kind} there with save_pretrained, or with 'hfdsl export RUN -o {path}'"
        return subject.finding(code, f"there is no {kind} folder '{path}'", field, changes=changes, advice=advice)
    if is_offline():
        message = (
            f"this machine's cache of the Hugging Face hub has no complete {kind} '{text}', and HF_HUB_OFFLINE keeps "
            "the run from the network"
        )
        advice = f"download it where there is a network: {download_command('model', *named)}"
        return subject.finding(code, message, field, notes=(advice,))
    return subject.finding(
        "HF723",
        f"the run downloads '{text}' from the Hugging Face hub when it starts, while its processes wait",
        field,
        notes=(f"download it first: {download_command('model', *named)}",),
    )


# -- tokenizers


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The number of a tokenizer's tokens and the id of its end token, as far as its files tell."""

    tokens: int | None = None
    end: int | None = None


def tokenizers_are_there(subject: Subject) -> Iterator[Finding]:
    """Every tokenizer has a folder with its files, and the pad token that the configuration names."""
    for field, tokenizer in subject.parts(Pretrained):
        path, files = local_folder(tokenizer.path), f"{field}.path"
        is_there = any((path / name).is_file() for name in TOKENIZERS)
        if not path.is_dir() or (hub_name(tokenizer.path) is not None and not is_there):
            yield _no_folder(subject, "HF904", "tokenizer", files, tokenizer.path)
        elif not is_there:
            yield subject.finding(
                "HF904",
                f"there is no tokenizer in '{path}'",
                files,
                notes=("save one with save_pretrained, or name the folder of the model that it belongs to",),
            )
        elif tokenizer.pad_token is not None:
            vocabulary = _vocabulary(path)
            if vocabulary is not None and tokenizer.pad_token not in vocabulary:
                yield subject.finding(
                    "HF904",
                    f"the tokenizer in '{path}' has no token {tokenizer.pad_token!r} to pad with",
                    f"{field}.pad_token",
                    changes=tuple(SetField(f"{field}.pad_token", end) for end in _end_token(path)),
                )


def prompts_have_a_template(subject: Subject) -> Iterator[Finding]:
    """A tokenizer for conversations has a chat template."""
    prompt, tokenizer = subject.config.data.prompt, subject.config.data.tokenizer
    if not prompt.chat and prompt.messages is None:
        return
    if isinstance(tokenizer, Characters) or not _may_have_template(local_folder(tokenizer.path)):
        name = "chat" if prompt.messages is None else "messages"
        yield subject.finding(
            "HF904",
            "the tokenizer has no template for conversations",
            f"data.prompt.{name}",
            related={"data.tokenizer": "this tokenizer"},
            changes=(SetField("data.prompt.chat", value=False),) if prompt.messages is None else (),
            advice="write prompt.text, or take the tokenizer of a chat model",
        )


def _may_have_template(path: Path) -> bool:
    """Whether a tokenizer's files hold a chat template, or would not show one."""
    config = _read(path / "tokenizer_config.json")
    return not config or "chat_template" in config or any(path.glob("*chat_template*"))


def _end_token(path: Path) -> tuple[str, ...]:
    """The token that ends a sequence, if the tokenizer's files name it."""
    end = _read(path / "tokenizer_config.json").get("eos_token")
    text = end.get("content") if isinstance(end, Mapping) else end
    return (text,) if isinstance(text, str) else ()


def facts_of(tokenizer: Characters | Pretrained) -> TokenizerFacts:
    """The facts that need no loading of a tokenizer; a class of transformers may add tokens to these.

    >>> facts_of(Characters("abc"))
    TokenizerFacts(tokens=6, end=1)
    """
    if isinstance(tokenizer, Characters):
        return TokenizerFacts(tokenizer.size, 1)
    path = local_folder(tokenizer.path)
    vocabulary = _vocabulary(path)
    return TokenizerFacts(None if vocabulary is None else len(vocabulary), _end_number(path))


def _end_number(path: Path) -> int | None:
    """The number of the token that ends a text, if the tokenizer's files have it."""
    file = _read(path / "tokenizer.json")
    added, model = file.get("added_tokens"), file.get("model")
    words = model.get("vocab") if isinstance(model, Mapping) else None
    numbers = dict(words) if isinstance(words, Mapping) else {}
    numbers |= {token.get("content"): token.get("id") for token in added or () if isinstance(token, Mapping)}
    number = next((numbers.get(text) for text in _end_token(path)), None)
    return number if isinstance(number, int) else None


def _vocabulary(path: Path) -> frozenset[str] | None:
    """The tokens of a ``tokenizer.json``."""
    text = _read(path / "tokenizer.json")
    model, added = text.get("model"), text.get("added_tokens")
    words = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(words, list):  # Unigram: pairs of a token and its score
        words = [pair[0] for pair in words if isinstance(pair, list) and pair]
    if not isinstance(words, (Mapping, list)) or not isinstance(added, list):
        return None
    extra = [token.get("content") for token in added if isinstance(token, Mapping)]
    return frozenset(token for token in (*words, *extra) if isinstance(token, str))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return parse_object(file.read_bytes())
    except (OSError, ValueError):
        return {}
