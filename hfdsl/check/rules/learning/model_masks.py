"""Masks of models: does a model get the mask of the padding that it reads, and is a score that of the last token?

A worked example, of prompts that are padded to one length, each before its response, which is padded, too::

    logits = self.model(ids).logits[:, -n - 1 : -1]                          HF355: padding of prompts is read as text
    logits = self.model(ids, attention_mask=mask).logits[:, -n - 1 : -1]
    hidden = self.model(ids, attention_mask=mask).last_hidden_state
    score = self.head(hidden)[:, -1, 0]                                      HF355: after padding, in shorter responses

A causal model does not see what comes after a token, so padding behind a response changes nothing: the rule reports a
call without a mask only if the program has a mask of prompts, if the call takes tokens of prompts and responses from a
record with their mask, and if its model takes a mask (``bodies/masked_models.py``). A body has not moved these tokens
if it takes the numbers of the response from their end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from hfdsl.check.bodies.model_tokens import AlignmentInterpretation
from hfdsl.check.bodies.padded_columns import MASKS, columns_with_width, is_mask, samples_full_responses
from hfdsl.check.bodies.token_positions import Outputs
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.rules.learning.shifted_tokens import tokens_of
from hfdsl.graph.program import Node
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import Span
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec

OF_ALL: Final = re.compile(r"(.*_)?(attention|attn)(_mask)?|(.*_)?(input|sequence)s?_mask|mask")
"""The names of masks of whole sequences."""


def models_know_padding(context: Context) -> Iterator[Finding]:
    """HF355: a model gets the mask of the prompts that it reads, and a score is not taken after padding."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        body = tokens_of(program, node, signature)
        findings = (
            []
            if body is None
            else [*_unmasked(program, node, signature, body), *_after_padding(program, node, signature, body)]
        )
        update = next(updates_after(program, node), None) if findings else None
        for finding in findings if update is not None else ():
            if finding.primary.span not in reported:
                reported.add(finding.primary.span)
                yield finding


def _unmasked(program: Program, node: Node, signature: Signature, body: AlignmentInterpretation) -> Iterator[Finding]:
    """The calls of models on prompts and responses without their mask."""
    columns = dict(columns_with_width(signature))
    for place, path in body.unmasked:
        ids = columns.get(path)
        mask = _mask_of_all(columns, ids) if ids is not None else ""
        if ids is not None and mask and _has_padded_prompts(program, ids):
            yield Finding(
                "HF355",
                f"'{node.label}' calls a model without the mask of '{path}': it reads the padding of prompts as text",
                Label(place, "without an attention mask"),
                (Label(node.span, "called here"),),
                notes=(f"pass it attention_mask={mask}.tensor",),
            )


def _mask_of_all(columns: Mapping[str, ColumnSpec], ids: ColumnSpec) -> str:
    """The path of the mask of prompts with their responses that a body takes; empty without one."""
    alike = [path for path, spec in columns.items() if is_mask(spec) and spec.dims == ids.dims]
    named = [path for path in alike if OF_ALL.fullmatch(path.rpartition(".")[2])]
    return named[0] if len(ids.dims[1].atoms) > 1 and named else ""


def _has_padded_prompts(program: Program, ids: ColumnSpec) -> bool:
    """Whether a mask in a program is of the prompts in a column of prompts with responses."""
    names = (name for _, signature in program.graph.bodies for name in _masks_of_parts(signature, ids))
    return any(MASKS.fullmatch(name) is None for name in names)


def _masks_of_parts(signature: Signature, ids: ColumnSpec) -> Iterator[str]:
    """The names of the masks that a body takes of a part of the tokens in a column: the prompt, or the response."""
    for path, spec in columns_with_width(signature):
        if is_mask(spec) and {*spec.dims[1].atoms} < {*ids.dims[1].atoms}:
            yield path.rpartition(".")[2]


def _after_padding(
    program: Program, node: Node, signature: Signature, body: AlignmentInterpretation
) -> Iterator[Finding]:
    """The scores of responses that are taken after the last column, which is padding in shorter ones."""
    columns = dict(columns_with_width(signature))
    kind = signature.returns
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else {}
    for name, outputs in body.columns.items():
        spec = fields.get(name)
        is_score = isinstance(spec, ColumnSpec) and is_float_column(spec) and len(spec.dims) == 1
        if not is_score or not isinstance(outputs, Outputs) or outputs.cut != "last" or outputs.tokens.end:
            continue
        ids = columns.get(outputs.tokens.column)
        has_mask = ids is not None and any(map(MASKS.fullmatch, _masks_of_parts(signature, ids)))
        if has_mask and not any(samples_full_responses(sampler) for _, sampler in program.graph.bodies):
            yield Finding(
                "HF355",
                f"'{node.label}' returns for '{name}' what a model gives after the last column: in shorter responses, "
                "it comes after padding",
                Label(outputs.place, "after padding"),
                (Label(node.span, "called here"),),
                notes=("take it after the last token: x.gather(1, mask.long().cumsum(1).argmax(1)[:, None])",),
            )
