"""When and in which words verl refuses the mutants of a draw, for the table in ``docs/compared.md``.

Print what ``one_knob.json`` keeps of it, from the mutants of a draw and their verdicts::

    python benchmarks/interop/refusals.py mutants.jsonl verdicts.jsonl

The seconds are those of ``verl_trial.py``, which has stand-ins for Ray, models and devices: they time verl's own code
up to its refusal, and say nothing of the minutes that a launched run takes to get there.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from one_knob import file_of  # type: ignore[import-not-found, unused-ignore]  # beside this file

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import report_on
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs

MOMENTS = {
    "configuration parsing": ("hydra", "validate_config"),
    "start-up": ("trainer", "worker", "optimizer"),
    "first step": ("batches", "advantages", "loss"),
    "by its source": ("engine", "loop", "reading"),
}
"""When a run meets a stage of ``verl_trial.py``; that repeats engines and the loop by hand, in words of its own."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mutant that verl refuses, with hfdsl's first error of it that its base has not."""

    question: dict[str, Any]
    stage: str
    seconds: float
    words: str
    finding: str

    def is_named(self, words: str) -> bool:
        """Whether a message names a key that the mutant changes, with underscores or with blanks."""
        keys = [word.rpartition(".")[2] for word in re.split(r"=| <-> | -> ", self.question["change"]) if word]
        return any(key.replace("_", " ") in words.replace("_", " ") for key in keys if key[:1].isalpha())


def errors(question: dict[str, Any], folder: Path) -> list[str]:
    """hfdsl's errors of a run, as one line each."""
    path, _ = file_of(question, Path(), folder)
    reports = (report_on(LIBRARIES["verl"], run, str(path)) for run in LIBRARIES["verl"].read(Inputs(str(path))))
    findings = [finding for report in reports for finding in report]
    return [f"{f.code} {f.message}" for f in findings if CODES[f.code].severity == "error"]


def refusals(mutants: Path, verdicts: Path) -> Iterator[Refusal]:
    """The refused mutants of bases that verl accepts."""
    by_id = {verdict["id"]: verdict for line in verdicts.open() if (verdict := json.loads(line))}
    questions = [json.loads(line) for line in mutants.open()]
    bases = {question["base"]: question for question in questions if question["kind"] == "base"}
    with tempfile.TemporaryDirectory() as name:
        for question in questions:
            verdict, base = by_id.get(question["id"], {"ok": True}), bases[question["base"]]
            if question is base or verdict["ok"] or not by_id[base["id"]]["ok"]:
                continue
            of_base = errors(base, Path(name))
            findings = [finding for finding in errors(question, Path(name)) if finding not in of_base]
            words = " ".join(verdict["error"].split())
            yield Refusal(question, verdict["stage"], verdict["s"], words, findings[0] if findings else "")


def example(refused: list[Refusal]) -> dict[str, str]:
    """The mutant with the longest error among those that are refused by a message of one line."""
    refusal = max((r for r in refused if r.finding and len(r.words) < 120), key=lambda r: (len(r.words), r.words))
    return {"change": refusal.question["change"], "library": refusal.words, "hfdsl": refusal.finding}


def row(moment: str, refused: list[Refusal]) -> dict[str, Any]:
    """What the page says of the mutants that are refused at one moment."""
    seconds = [refusal.seconds for refusal in refused]
    in_words = {
        "seconds": [round(statistics.median(seconds), 2), round(max(seconds), 2)],
        "library names": sum(refusal.is_named(refusal.words) for refusal in refused),
        "example": example(refused),
    }
    return {
        "when": moment,
        "mutants": len(refused),
        "hfdsl names": sum(refusal.is_named(refusal.finding) for refusal in refused),
        **({} if moment == "by its source" else in_words),
    }


def main(mutants: Path, verdicts: Path) -> None:
    """Print a row for each moment."""
    listed = list(refusals(mutants, verdicts))
    rows = [
        row(moment, [refusal for refusal in listed if refusal.stage in stages]) for moment, stages in MOMENTS.items()
    ]
    json.dump(rows, sys.stdout, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
