"""Configurations of runs, in classes of mistakes: each is found, at its line and key, and valid ones check clean.

A bad file ends the line of the key with ``# <- CODE``. Everything is known from the file: no other finding may come.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from hfdsl.tools.cli import main
from hfdsl.tools.target import load

ROOT = Path(__file__).parents[2]
BAD, VALID = (Path(__file__).parent / "configs" / kind for kind in ("bad", "valid"))
MARK = re.compile(r"  # <- (HF\d{3})$", re.MULTILINE)
CODES = {
    "fills": "HF360",
    "lengths": "HF711",
    "temperatures": "HF712",
    "coefficients": "HF713",
    "dtypes": "HF714",
    "engines": "HF957",
    "shards": "HF715",
    "divisors": "HF721",
    "corrections": "HF943",
    "references": "HF944",
    "samples": "HF727",
    "dropout": "HF945",
    "terms": "HF946",
    "ends": "HF909",
    "unusual": "HF947",
    "discounts": "HF948",
}
"""The code of each class, which is the first word of a file's name."""

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))


def marked(file: Path) -> tuple[int, str]:
    lines = file.read_text("utf-8").splitlines()
    [place] = [(number, match[1]) for number, line in enumerate(lines, 1) if (match := MARK.search(line))]
    return place


@pytest.mark.parametrize("folder", [BAD, VALID], ids=lambda folder: folder.name)
def test_every_class_has_three_programs(folder: Path) -> None:
    counts = Counter(name.partition("_")[0] for name in names(folder))
    assert counts.keys() == CODES.keys()
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("name", names(BAD))
def test_a_mistake_is_found_at_its_line_and_key(name: str) -> None:
    file = (BAD / f"{name}.toml").relative_to(ROOT)
    findings = [finding for report in load(str(file)).reports(elsewhere=True) for finding in report]
    places = [(finding.primary.span.file, finding.primary.span.line, finding.code) for finding in findings]
    assert places == [(str(file), *marked(file))], findings
    span = findings[0].primary.span
    key = file.read_text("utf-8").splitlines()[span.line - 1][span.column : span.end_column]
    assert re.fullmatch(r"[a-z_.]+", key)
    assert findings[0].code == CODES[name.partition("_")[0]]


@pytest.mark.parametrize("name", names(VALID))
def test_a_valid_configuration_is_clean(name: str) -> None:
    reports = load(str(VALID / f"{name}.toml")).reports(elsewhere=True)
    assert [report.findings for report in reports] == [()] * len(reports)


@pytest.mark.parametrize("name", ["corrections_left_out", "fills_of_the_paper"])
def test_other_formats_name_the_line_of_the_file(name: str, capsys: Capture) -> None:
    file = (BAD / f"{name}.toml").relative_to(ROOT)
    line, code = marked(file)
    main(["check", str(file), "--elsewhere", "--format", "github"])
    assert capsys.readouterr().out.startswith(f"::warning file={file},line={line},")
    main(["check", str(file), "--elsewhere", "--format", "sarif"])
    [run] = json.loads(capsys.readouterr().out)["runs"]
    [result] = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] == code
    assert place["artifactLocation"]["uri"].endswith(str(file))
    assert place["region"]["startLine"] == line
