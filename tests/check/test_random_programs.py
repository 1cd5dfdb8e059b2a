"""Random well-typed programs check clean and run; one mistake put into one of their lines is found there, alone."""

from __future__ import annotations

import re
from typing import Any

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.check.repair.edits import apply
from hfdsl.testing.strategies.graphs import Program, graphs, load
from tests.nightly import examples

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(program: Program) -> hf.Report:
    names = load(program.source())
    report: hf.Report = names["program"].check(names["deployment"], names["dims"])
    return report


@many
@given(graphs(max_nodes=10))
def test_a_well_typed_program_has_no_findings(program: Program) -> None:
    report = check(program)
    assert report.findings == (), f"{program.source()}\n{report}"


@settings(many, max_examples=examples(40))
@given(graphs(max_nodes=10))
def test_a_program_that_checks_clean_runs_for_several_sizes(program: Program) -> None:
    names = load(program.source())
    plan = names["program"].compile(names["deployment"])  # sizes come with the batch
    fixed = "hf.fill(" in program.source() or "hf.take(" in program.source()  # their number is one of these rows alone
    with plan.launch() as running:
        for rows in (program.rows,) if fixed else (program.rows, program.rows * 2):
            outputs = running.step(names["SamplePrompts"](ids=torch.arange(rows * 2).view(rows, 2)))
            assert len(outputs) == len(program.lines)
            eager = names["program"](names["SamplePrompts"](ids=torch.arange(rows * 2).view(rows, 2)), *workers(names))
            for line, value, meant in zip(program.lines, outputs, eager, strict=True):
                if line.kind != "SampleMetrics":
                    assert len(value) == len(meant)
                    for column in value.__hf_columns__:
                        assert torch.allclose(getattr(value, column).tensor, getattr(meant, column).tensor), line


def workers(names: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(placement.role() for placement in names["deployment"].placements.values())


def code_and_line(finding: hf.Finding) -> tuple[str, int]:
    return finding.code, finding.primary.span.line


FAULTS: dict[str, tuple[str, str, str]] = {
    # name: what is looked for in a line, what is put there, the code
    "misspelled column": (r"\.(ids|mask|log_probs|advantages|keep)\b(?!\()", r".\1z", "HF201"),
    "misspelled method": (r"(actor|judge)\.(\w+)\(", r"\1.\2z(", "HF202"),
    "misspelled port": (r"(?<!Advantages\()\b(rollout|advantages|mask|scores|scale)=", r"\1z=", "HF202"),
    "misspelled column of a record": (r"^Advantages\(advantages=", "Advantages(advantagesz=", "HF201"),
    "lost argument": (r"(?<=\()[^(),]+(?=\)$)", "", "HF203"),
    "another record": (r"^(actor\.log_probs|judge\.score|judge\.opinions)\(v\d+", r"\1(prompts", "HF204"),
    "a number": (r"^(actor\.log_probs|judge\.score|centre)\(\w+(?=[,)])", r"\1(3", "HF206"),
    "nothing": (r"^(actor\.log_probs|judge\.score|centre)\(\w+(?=[,)])", r"\1(None", "HF206"),
    "a role": (r"^(actor\.log_probs|judge\.score|centre)\(\w+(?=[,)])", r"\1(actor", "HF206"),
    "a list": (r"^(actor\.log_probs|judge\.score|centre)\((\w+)(?=[,)])", r"\1([\2]", "HF206"),
    "arithmetic": (r"^(actor\.log_probs|judge\.score|centre)\((\w+)(?=[,)])", r"\1(\2 * 2", "HF208"),
    "a decision": (r"^(v\d+|hf\..*|actor.*|judge.*|centre.*)$", r"\1 if bool(prompts) else prompts", "HF207"),
    "another dtype": (r"mask=(v\d+)\.mask", r"mask=\1.log_probs", "HF220"),
    "another dim": (r"judge\.look\((v\d+)\.ids", r"judge.look(prompts.ids", "HF210"),
    "repeated once too often": (r"^weigh\((v\d+), (v\d+)\)", r"weigh(\1, hf.repeat(\2, 2))", "HF212"),
    "no repeat": (r"hf\.repeat\((\w+), 2\)", r"hf.repeat(\1, 0)", "HF304"),
    "a list of ranks": (r"first\((judge\.opinions\(v\d+\))\)", r"judge.score(\1)", "HF401"),
    "a filter without a policy": (
        r"hf\.fill\((hf\.filter\(.*\)), 24\)",
        r"hf.fill(hf.minibatches(\1, 2)[0], 24)",
        "HF321",
    ),
    "a foreign constant": (r"scale=0\.5", "scale='much'", "HF206"),
}


def faulty(program: Program) -> list[tuple[str, int, Program, str]]:
    """Every mistake that can be put into a program."""
    faults = []
    for name, (pattern, replacement, code) in FAULTS.items():
        for index, line in enumerate(program.lines):
            text = re.sub(pattern, replacement, line.text, count=1)
            if text != line.text:
                faults.append((name, index, program.with_line(index, text), code))
    return faults


@settings(many, max_examples=examples(300))
@given(graphs(max_nodes=10), st.randoms(use_true_random=False))
def test_one_mistake_is_found_alone_and_in_its_line(program: Program, random: Any) -> None:
    faults = faulty(program)
    assume(faults)
    kind = random.choice(sorted({name for name, *_ in faults}))  # each kind as often as any other
    name, index, wrong, code = random.choice([fault for fault in faults if fault[0] == kind])
    report = check(wrong)
    shown = f"{name} in line {wrong.number(index)}\n{wrong.source()}\n{report}"
    assert {finding.code for finding in report} == {code}, shown
    assert {finding.primary.span.line for finding in report} == {wrong.number(index)}, shown


@settings(many, max_examples=examples(60))
@given(graphs(max_nodes=10), st.randoms(use_true_random=False))
def test_every_offered_fix_mends_its_finding_and_adds_none(program: Program, random: Any) -> None:
    faults = [fault for fault in faulty(program) if "misspelled" in fault[0] or "repeated" in fault[0]]
    assume(faults)
    name, _, wrong, _ = random.choice(faults)
    report = check(wrong)
    fixes = [(finding, fix) for finding in report for fix in finding.fixes]
    assert fixes or name not in ("misspelled method", "misspelled column"), str(report)
    for finding, fix in fixes:
        names = load(apply(wrong.source(), fix.edits))
        mended: hf.Report = names["program"].check(names["deployment"], names["dims"])
        assert {code_and_line(f) for f in mended} <= {code_and_line(f) for f in report} - {code_and_line(finding)}, (
            f"{fix}\n{mended}"
        )


@many
@given(graphs(max_nodes=10), st.sampled_from(["rows", "mesh", "place"]))
def test_one_mistake_of_the_deployment_is_found_alone(program: Program, fault: str) -> None:
    if fault == "mesh":
        report = check(Program(**{**vars(program), "train": program.dp * program.tp + 1}))
        assert report.codes == ("HF501",), str(report)
    elif fault == "place":
        names = load(program.source().replace("    actor=hf.place", "    actors=hf.place"))
        report = names["program"].check(names["deployment"], names["dims"])
        assert set(report.codes) == {"HF507"}, str(report)
    else:
        assume(program.dp > 1)
        report = check(Program(**{**vars(program), "rows": program.rows + 1}))
        assert set(report.codes) & {"HF310", "HF303", "HF313"}, str(report)
        for finding in report:
            sizes = [text for text in finding.help if text.startswith("set B to")]
            for number in re.findall(r"\d+", " ".join(sizes)):
                mended = check(Program(**{**vars(program), "rows": int(number)}))
                assert {code_and_line(f) for f in mended} <= {code_and_line(f) for f in report} - {
                    code_and_line(finding)
                }, str(mended)
