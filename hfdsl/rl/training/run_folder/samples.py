"""Samples of rollouts for reading: prompts, responses and scores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfdsl.rl.training.metrics import drop_after, writing
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import MetricSpec


class Samples:
    """A file with an object per line: step, prompt, response, score, and the row's own answer if it has one."""

    def __init__(self, path: Path, tokenizer: Any, count: int, step: int | None) -> None:
        with writing(path):
            drop_after(path, -1 if step is None else step)
        self._path, self._tokenizer, self._count = path, tokenizer, count

    def write(self, step: int, prompts: Any, result: Any) -> None:
        """Write the first rollouts of a result, if it has any."""
        results = list(records(result))
        rollout = next(
            (record for record in results if {"ids", "response_mask"} <= schema(type(record)).fields.keys()), None
        )
        if rollout is None or not self._count:
            return
        score = next((record.score.tensor.tolist() for record in results if _is_column(record, "score")), None)
        texts = zip(self._texts(prompts.ids.tensor, prompts.mask.tensor), self._responses(rollout), strict=True)
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            for i, (prompt, response) in enumerate(texts):
                if i == self._count:
                    break
                task = prompts.task.objects[i]
                line = {"step": step, "prompt": prompt, "response": response}
                line |= {} if score is None else {"score": score[i]}
                line |= {"answer": task["answer"]} if "answer" in task else {}
                file.write(json_line(line))

    def _responses(self, rollout: Any) -> Iterator[str]:
        mask = rollout.response_mask.tensor
        return self._texts(rollout.ids.tensor[:, -mask.shape[1] :], mask)

    def _texts(self, ids: Any, mask: Any) -> Iterator[str]:
        for row, real in zip(ids, mask, strict=True):
            yield self._tokenizer.decode(row[real].tolist(), skip_special_tokens=True)


def json_line(fields: dict[str, Any]) -> str:
    r"""A line that any reader takes as one line, in valid Unicode whatever the texts hold.

    >>> json_line({"response": "a\u2028b é"})
    '{"response": "a\\u2028b é"}\n'
    """
    text = json.dumps(fields, ensure_ascii=False, default=str)
    return UNSAFE.sub(lambda character: f"\\u{ord(character[0]):04x}", text) + "\n"


UNSAFE = re.compile(r"[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Line separators that JSON allows within texts, and halves of surrogate pairs, which no encoding has."""


def _is_column(record: Batch, name: str) -> bool:
    spec = schema(type(record)).fields.get(name)
    return spec is not None and not isinstance(spec, MetricSpec)


def records(result: Any) -> Iterator[Any]:
    """The records in the result of a dataflow, depth first."""
    if isinstance(result, Batch):
        yield result
    elif isinstance(result, dict):
        for inner in result.values():
            yield from records(inner)
    elif isinstance(result, (list, tuple)):
        for inner in result:
            yield from records(inner)
