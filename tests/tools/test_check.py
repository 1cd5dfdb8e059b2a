"""``hfdsl check``: its forms, its exit codes, several targets, and what it finds by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfdsl
from hfdsl.check.codes import CODES, explain
from hfdsl.check.report import Coverage, Report
from hfdsl.tools import output
from hfdsl.tools.cli import main
from hfdsl.tools.formats import FORMATS
from tests.tools.conftest import PROGRAM

Capture = pytest.CaptureFixture[str]
Write = Callable[[str, str], str]


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def wide(text: str) -> str:
    """The program with letters of two bytes, and of two UTF-16 units, before a misspelled name."""
    return text.replace("answers = actor.answer(questions)", "é, 𐍈 = 1, 2; answers = actor.anwser(questions)")


# -- exit codes


UNUSED = PROGRAM.replace("    return answers, judge", "    actor.answer(questions)\n    return answers, judge")


@pytest.mark.parametrize(
    ("text", "argv", "code"),
    [
        (PROGRAM, [], output.OK),
        (PROGRAM, ["--strict"], output.OK),
        (PROGRAM, ["--set", "B=3"], output.FINDINGS),
        (UNUSED, [], output.OK),
        (UNUSED, ["--strict"], output.FINDINGS),
        (PROGRAM, ["--set", "Q=3"], output.USAGE),
        (PROGRAM, ["--diff"], output.USAGE),
        ("import hfdsl as hf\nraise RuntimeError\n", [], output.USAGE),
    ],
)
@pytest.mark.parametrize("form", ["human", "json", "sarif", "github"])
def test_exit_codes(text: str, argv: list[str], code: int, form: str, write: Write, capsys: Capture) -> None:
    write("program.py", text)
    target = "program.py:experiment" if "experiment" in text else "program.py"
    assert run_cli(capsys, target, "--format", form, *argv)[0] == code


def test_the_worst_of_several_targets_counts(write: Write, capsys: Capture) -> None:
    write("clean.py", PROGRAM)
    write("wrong.py", wide(PROGRAM))
    assert run_cli(capsys, "clean.py:experiment", "wrong.py:pondering")[0] == output.OK
    code, out, _ = run_cli(capsys, "clean.py:experiment", "wrong.py:experiment")
    assert code == output.FINDINGS
    assert dataflows(out) == ["shout", "shout"]
    code, out, err = run_cli(capsys, "zzz.py", "wrong.py:experiment")
    assert (code, err) == (output.USAGE, "hfdsl check: there is no file 'zzz.py'\n")
    assert out.startswith("error[HF202]")  # the others are checked all the same


def test_a_bug_is_reported_in_every_form(program: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("hfdsl.tools.checking.load", broken)
    code, _, err = run_cli(capsys, program, "--format", "sarif")
    assert code == output.BUG
    assert "this is a bug in hfdsl" in err


# -- forms


def test_json_has_a_version_and_the_fixes(write: Write, capsys: Capture) -> None:
    write("program.py", wide(PROGRAM))
    _, out, _ = run_cli(capsys, "program.py:experiment", "--format", "json")
    [finding] = map(json.loads, out.splitlines())
    assert finding["version"] == 1
    [fix] = finding["fixes"]
    [edit] = fix.pop("edits")
    assert fix == {"title": "replace 'anwser' by 'answer'"}
    line = wide(PROGRAM).splitlines()[edit["line"] - 1].encode()
    assert line[edit["column"] : edit["endColumn"]] == b"anwser"


def test_sarif(write: Write, tmp_path: Path, capsys: Capture) -> None:
    write("sub folder/program.py", wide(PROGRAM))
    code, out, err = run_cli(capsys, "sub folder/program.py:experiment", "--format", "sarif")
    assert (code, err) == (output.FINDINGS, "")
    log = json.loads(out)
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    [run] = log["runs"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]
    [rule] = run["tool"]["driver"]["rules"]
    assert rule["id"] == "HF202"
    assert rule["shortDescription"]["text"] == CODES["HF202"].title
    assert rule["help"]["markdown"] == explain("HF202")
    [result] = run["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("HF202", 0, "error")
    [place] = result["locations"]
    physical = place["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "sub%20folder/program.py", "uriBaseId": "%SRCROOT%"}
    lines = wide(PROGRAM).splitlines()
    assert cut(lines, physical["region"]) == "actor.anwser"
    assert [related["id"] for related in result["relatedLocations"]] == [0]
    assert result["relatedLocations"][0]["message"]["text"].startswith("its registered methods: ")
    [fix] = result["fixes"]
    assert fix["description"]["text"] == "replace 'anwser' by 'answer'"
    [change] = fix["artifactChanges"]
    [replacement] = change["replacements"]
    assert change["artifactLocation"] == physical["artifactLocation"]
    assert cut(lines, replacement["deletedRegion"]) == "anwser"
    assert replacement["insertedContent"] == {"text": "answer"}


def cut(lines: list[str], region: dict[str, int]) -> str:
    assert region["startLine"] == region["endLine"]
    return lines[region["startLine"] - 1][region["startColumn"] - 1 : region["endColumn"] - 1]


def test_sarif_of_a_clean_program_and_of_one_that_is_not_there(program: str, capsys: Capture) -> None:
    [run] = json.loads(run_cli(capsys, "shouting.py:experiment", "--format", "sarif")[1])["runs"]
    assert run["results"] == run["tool"]["driver"]["rules"] == []
    assert run["tool"]["driver"]["semanticVersion"] == hfdsl.__version__
    code, out, err = run_cli(capsys, "nothing.py", "--format", "sarif")
    [invocation] = json.loads(out)["runs"][0]["invocations"]
    assert code == output.USAGE
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] in err


def test_sizes_that_were_not_checked_are_in_every_form(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write("many.py", PROGRAM.replace("dims={B: 4}", "dims={B: tuple(range(2, 22, 2))}"))
    assert run_cli(capsys, "many.py:experiment", "--format", "json") == (output.OK, "", "")
    monkeypatch.setattr("hfdsl.check.context.MAX_COST", 1)
    monkeypatch.setattr("hfdsl.check.context.MIN_COMBINATIONS", 4)
    assert "5 of 10 combinations of sizes" in run_cli(capsys, "many.py:experiment")[1]
    code, out, _ = run_cli(capsys, "many.py:experiment", "--format", "json")
    summary = {"dataflow": "shout", "checked": 5, "combinations": 10, "search_cut_off": False}
    assert (code, json.loads(out)) == (output.OK, {"version": 1, "summary": summary})
    [run] = json.loads(run_cli(capsys, "many.py:experiment", "--format", "sarif")[1])["runs"]
    text = "check of 'shout': 5 of 10 combinations of sizes"
    notification = {"level": "warning", "message": {"text": text}}
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": [notification]}]
    assert run["results"] == []
    assert run_cli(capsys, "many.py:experiment", "--format", "github")[1] == f"::warning title=hfdsl::{text}\n"


def test_a_search_that_was_cut_off_is_in_every_form() -> None:
    report = Report("step", coverage=Coverage(checked=2, combinations=2, search_cut_off=True))
    assert json.loads(FORMATS["json"]([report], []))["summary"]["search_cut_off"] is True
    text = "check of 'step': the search for suggestions was cut off"
    [run] = json.loads(FORMATS["sarif"]([report], []))["runs"]
    [notification] = run["invocations"][0]["toolExecutionNotifications"]
    assert notification == {"level": "note", "message": {"text": text}}
    assert FORMATS["github"]([report], []) == f"::notice title=hfdsl::{text}"


def test_a_declaration_without_meaning_is_a_result(write: Write, capsys: Capture) -> None:
    write("declared.py", "import hfdsl as hf\nclass Bad(hf.Batch):\n    x: int\n")
    _, out, _ = run_cli(capsys, "declared.py", "--format", "sarif")
    [result] = json.loads(out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 3


def test_github(write: Write, capsys: Capture) -> None:
    write("program.py", wide(PROGRAM))
    code, out, err = run_cli(capsys, "program.py:experiment", "zzz.py", "--format", "github")
    first, last = out.splitlines()
    assert (code, err) == (output.USAGE, "hfdsl check: there is no file 'zzz.py'\n")
    line = wide(PROGRAM).splitlines().index("    é, 𐍈 = 1, 2; answers = actor.anwser(questions)") + 1
    assert first == (
        f"::error file=program.py,line={line},col=28,endColumn=40,title=HF202::"
        "role 'Actor' has no registered method 'anwser'%0Ahelp: did you mean 'answer'?"
    )
    assert last == "::error title=hfdsl::there is no file 'zzz.py'"


@pytest.mark.parametrize(
    ("name", "shown"), [("a,b.py", "a%2Cb.py"), ("100%.py", "100%25.py"), ("c:d.py", "c%3Ad.py"), ("e f.py", "e f.py")]
)
def test_github_escapes_names(name: str, shown: str, write: Write, capsys: Capture) -> None:
    write(name, PROGRAM)
    _, out, _ = run_cli(capsys, f"./{name}", "--discover", "--set", "B=3", "--format", "github")
    assert f"file={shown},line=" in out
    assert "3 %25 2 = 1" in out


def test_github_tells_paths_from_the_checkout(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    write("inner/program.py", PROGRAM)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.chdir(tmp_path / "inner")
    _, out, _ = run_cli(capsys, "program.py:experiment", "--set", "B=3", "--format", "github")
    assert "file=inner/program.py," in out


@pytest.mark.parametrize("form", ["json", "github"])
def test_a_clean_check_prints_no_json(form: str, program: str, capsys: Capture) -> None:
    assert run_cli(capsys, "shouting.py:experiment", "--format", form) == (output.OK, "", "")


# -- discovery


def dataflows(out: str) -> list[str]:
    return re.findall(r"^check of '(\w+)'", out, re.MULTILINE)


def test_discover_checks_all_that_a_file_defines(write: Write, capsys: Capture) -> None:
    more = "\n\n@hf.dataflow\ndef alone(questions: Questions, actor: Actor) -> Questions:\n"
    write("program.py", f"{PROGRAM}{more}    return actor.answer(questions)\n")
    code, out, err = run_cli(capsys, "--discover", "program.py")
    assert (code, err) == (output.OK, "")
    assert sorted(dataflows(out)) == ["alone", "ponder", "shout"]


def test_discover_passes_over_files_without_a_dataflow(write: Write, capsys: Capture) -> None:
    raising = "raise RuntimeError('imported')\n"
    write("setup.py", raising)
    write("uses.py", f"import hfdsl\n{raising}")
    write("text.py", f"# hfdsl is a DSL with a dataflow\n{raising}")
    files = ["setup.py", "uses.py", "text.py"]
    assert run_cli(capsys, "--discover", *files)[:2] == (
        output.OK,
        "nothing to check: no experiment and no function under @hf.dataflow is defined there\n",
    )
    write("broken.py", f"import hfdsl as hf\n@hf.dataflow\ndef f(): ...\n{raising}")
    code, _, err = run_cli(capsys, "--discover", *files, "broken.py")
    assert code == output.USAGE
    assert "RuntimeError: imported" in err


def test_discover_goes_through_folders(write: Write, capsys: Capture) -> None:
    write("one.py", PROGRAM)
    write("package/__init__.py", "")
    flow = "@hf.dataflow\ndef same(questions: Questions) -> Questions:\n    return questions\n"
    write("package/two.py", f"import hfdsl as hf\nfrom one import Questions, ponder\n{flow}")
    for hidden in (".hidden/three.py", "__pycache__/three.py", "env/lib/three.py"):
        write(hidden, PROGRAM.replace("shout", "hidden"))
    write("env/pyvenv.cfg", "")
    code, out, err = run_cli(capsys, "--discover", ".")
    assert (code, err) == (output.OK, "")
    assert sorted(dataflows(out)) == ["ponder", "same", "shout"]


def test_discover_imports_from_the_folder_of_each_file(write: Write, capsys: Capture) -> None:
    for folder, name in (("a", "first"), ("b", "second"), ("c", "third")):
        write(f"{folder}/names.py", f"{name} = 1\n")
        write(f"{folder}/program.py", f"from names import {name}\n{PROGRAM.replace('shout', name)}")
    write("taken.py", PROGRAM.replace("shout", "script"))
    write("inner/taken/__init__.py", "")
    write("inner/taken/other.py", "")
    write("inner/taken/fourth.py", f"import taken.other\n{PROGRAM.replace('shout', 'fourth')}")
    code, out, err = run_cli(capsys, "--discover", "a", "b", "c", "a", "taken.py", "inner")
    assert (code, err) == (output.OK, "")
    named = [name for name in dataflows(out) if name != "ponder"]
    assert named == ["first", "second", "third", "first", "script", "fourth"]


def test_discover_passes_over_functions_that_need_arguments(write: Write, capsys: Capture) -> None:
    write("program.py", f"{PROGRAM}\n\ndef loaded(name: str) -> hf.Experiment: ...\n")
    code, out, err = run_cli(capsys, "--discover", "program.py")
    assert (code, err) == (output.OK, "")
    assert sorted(dataflows(out)) == ["ponder", "shout"]


def test_discover_of_a_file_that_is_not_there(write: Write, capsys: Capture) -> None:
    write("program.py", PROGRAM)
    code, _, err = run_cli(capsys, "--discover", "progam.py")
    assert code == output.USAGE
    assert "did you mean 'program.py'?" in err


def test_no_color_where_no_terminal_is(program: str, capsys: Capture) -> None:
    for form in ("human", "json", "sarif", "github"):
        assert "\033" not in run_cli(capsys, "shouting.py:experiment", "--set", "B=3", "--format", form)[1]


RUN = """
algorithm = "hfdsl.rl.dataflows.grpo:grpo"
output = "run"
steps = 1
dims = { B = 7, P = 4, R = 3 }
roles = { reward = "hfdsl.rl.workers:Verifier" }
deployment = { pools = { all = { processes = [2], gpu = false } }, default = { pool = "all" } }
options = { group = 3 }

[data]
source = { kind = "JsonLines", path = "words.jsonl" }
tokenizer = { kind = "Characters", alphabet = "ab" }

[actor]
model.config = { model_type = "llama", pad_token_id = 0 }
generation = { max_tokens = 3 }

[reference]
model = "$actor.model"

[reward]
function = "rewards:score"
"""


def test_discover_finds_configurations_and_names_their_files(write: Write, capsys: Capture) -> None:
    write("runs/first.toml", RUN)
    write("runs/second.toml", RUN.replace("group = 3", "groups = 3"))
    write("runs/third.toml", RUN.replace("[data]", "[data"))
    write("runs/done/config.toml", RUN)
    write("runs/done/metrics.jsonl", "")
    for text in ('algorithm = "md5"\n', '[tool]\nalgorithm = "a:b"\n', "[pools.all]\nprocesses = [1]\n", "]["):
        write(f"other{len(text)}.toml", text)
    write("broken.py", "import hfdsl, nothing\nhfdsl.dataflow\n")
    code, out, err = run_cli(capsys, "--discover", "--elsewhere", ".")
    assert code == output.USAGE
    assert re.findall(r"^check of '(.*?)'.* in (\S+)", out, re.MULTILINE) == [("grpo", "runs/first.toml")]
    assert re.findall(r"^check of '(.*?)'", err, re.MULTILINE) == ["runs/second.toml", "runs/third.toml"]
    assert "importing" in err
    assert re.findall(r"--> (\S+)", out + err) == [
        "runs/first.toml:5:10",
        "runs/second.toml:8:13",
        "runs/third.toml:10:6",
    ]


def test_findings_of_a_ready_dataflow_are_in_the_file_of_the_run(
    write: Write, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("run.toml", RUN)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    _, github, _ = run_cli(capsys, "--elsewhere", "--format", "github", "run.toml")
    assert re.findall(r"file=([^,]*),line=(\d+)", github) == [("run.toml", "5")]
    _, sarif, _ = run_cli(capsys, "--elsewhere", "--format", "sarif", "run.toml")
    assert set(re.findall(r'"uri": "(.*?)"', sarif)) == {"run.toml"}
