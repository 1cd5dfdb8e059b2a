"""Example configurations of a library as runs of hfdsl: how many have a counterpart, and what hfdsl's rules find.

Run with a checkout of the library, of which nothing needs to be installed::

    python benchmarks/interop/lowered_examples.py nemo-rl CHECKOUT/examples
    python benchmarks/interop/lowered_examples.py openrlhf CHECKOUT/examples

Each run that the library's rules find right is lowered and planned. Its conversion is read back, must have the same
plan, and is checked with ``--elsewhere``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import report_on
from hfdsl.interop.lowered_runs import load, to_toml
from hfdsl.interop.lowering import NotLowered
from hfdsl.interop.readers import LIBRARIES, Library
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.text import ReadError
from hfdsl.rl.training import config
from hfdsl.rl.training.check import ConfigCheck

ENDINGS = {"verl": ".sh", "trl": ".sh", "openrlhf": ".sh", "nemo-rl": ".yaml"}


def outcomes(library: Library, reading: RunReading, name: str, folder: Path) -> Iterator[str]:
    """What becomes of a run, in words that are counted."""
    report = report_on(library, reading, name)
    yield from (f"check: {finding.code}" for finding in report)
    if not report.ok:
        yield "has errors"
        return
    try:
        lowered = library.lower(reading.configuration)
    except NotLowered as error:
        print(name, "|", error)
        yield error.code
        return
    file = folder / "experiment.toml"
    file.write_text(to_toml(lowered), "utf-8")
    converted = config.load(file)
    same = str(load(lowered).experiment().compile()) == str(converted.experiment().compile())
    yield "lowered, with the plan of its conversion" if same else "lowered, with another plan than its conversion"
    for findings in ConfigCheck(elsewhere=True).reports(converted):
        for finding in findings:
            print(name, "|", finding.code, finding.message)
            yield f"conversion: {CODES[finding.code].severity} {finding.code}"


def main(name: str, folder: Path) -> None:
    """Count the outcomes of all examples."""
    library, counts = LIBRARIES[name], Counter[str]()
    with TemporaryDirectory() as scratch:
        for path in sorted(folder.rglob(f"*{ENDINGS[name]}")):
            try:
                readings = library.read(Inputs(str(path)))
            except ReadError:
                counts["not read"] += 1
                continue
            for reading in readings:
                counts.update(outcomes(library, reading, path.name, Path(scratch)))
    for outcome, count in sorted(counts.items()):
        print(f"{outcome:50}{count:6}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
