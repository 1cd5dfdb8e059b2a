"""The tokens that end and fill the responses of the roles that generate."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.check.rules.learning.ends import message
from hfdsl.rl.training.preflight.architecture import default_tokens
from hfdsl.rl.training.preflight.folders import facts_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import generating
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.special_tokens import own_ends

TOKENIZER = "the tokenizer"
"""The owner of an end token, for messages."""


def responses_end(subject: Subject) -> Iterator[Finding]:
    """A role that generates ends a response with the token that the tokenizer, or its model, ends a text with."""
    tokenizer = facts_of(subject.config.data.tokenizer).end
    for field, model in _models(subject):
        missed = _missed_end(model, tokenizer)
        if missed is not None:
            yield _finding(subject, field, model, *missed)


def responses_end_by_default(subject: Subject) -> Iterator[Finding]:
    """The type of a new model that names no end token has that of the tokenizer, by the files of transformers."""
    tokenizer = facts_of(subject.config.data.tokenizer).end
    for field, model in _models(subject):
        config = model.config or {}
        if tokenizer is None or model.path is not None or model.end_tokens is not None or "eos_token_id" in config:
            continue
        if tokenizer not in (default_tokens(str(config.get("model_type")), "eos_token_id") or (tokenizer,)):
            yield _finding(subject, field, model, tokenizer, TOKENIZER)


def _finding(subject: Subject, field: str, model: ModelConfig, end: int, whose: str) -> Finding:
    ends = own_ends(model) if model.end_tokens is None else model.end_tokens
    change = SetField(f"{field}.end_tokens", [*ends, end])
    return subject.finding(
        "HF909",
        message(subject.role_of(field) or field, end, whose),
        f"{field}.end_tokens",
        related={"data.tokenizer": f"it ends a text with {end}"} if whose == TOKENIZER else {},
        changes=(change,),
        advice=str(change),
    )


def _missed_end(model: ModelConfig, tokenizer: int | None) -> tuple[int, str] | None:
    """The end token of the tokenizer, or else of the model, that ends no response; and whose it is.

    A new model that has another end token by its own configuration is a mismatch (HF904).
    """
    own, chosen = own_ends(model), model.end_tokens
    if tokenizer in (own if chosen is None else chosen):
        return None
    if chosen is not None and own and set(own).isdisjoint(chosen):
        return own[0], "its model"
    is_new_without = model.path is None and (model.config or {}).get("eos_token_id", ...) is None
    if tokenizer is not None and (chosen is not None or is_new_without or (own and model.path is not None)):
        return tokenizer, TOKENIZER
    return None


def _models(subject: Subject) -> Iterator[tuple[str, ModelConfig]]:
    """The models of the roles that generate, with their fields; a repeated one counts once."""
    roles = {role for graph in subject.graphs.values() for role in generating(graph)}
    yielded: list[ModelConfig] = []
    for field, model in subject.parts(ModelConfig):
        if subject.role_of(field) in roles and model not in yielded:
            yielded.append(model)
            yield field, model
