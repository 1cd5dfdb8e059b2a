"""``hfdsl mcp``: the tools of coding agents, in this process and, as clients of the protocol have them, over stdio."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hfdsl.tools import answers, explaining, output
from hfdsl.tools.cli import main
from tests.tools.conftest import PROGRAM

pytest.importorskip("mcp")  # an extra of its own

import anyio
import jsonschema
from mcp import Client, StdioServerParameters, stdio_client

from hfdsl.tools.serving import ServedTool

ROOT = Path(__file__).parents[2]

Capture: TypeAlias = pytest.CaptureFixture[str]
Write: TypeAlias = Callable[[str, str], str]

MISSPELLED = PROGRAM.replace("actor.answer(questions)", "actor.anwser(questions)")
LOUD = 'import sys\nprint("out of turn")\nsys.stdin.read()\n'


def replied(name: str, **question: Any) -> answers.AgentReply:
    """The reply of a tool; its answer keeps the schema that clients get."""
    tool = answers.TOOLS[name]
    reply = answers.reply(tool, tool.asks(**question))
    schema = ServedTool(tool).as_listed().output_schema
    assert schema is not None
    jsonschema.validate(json.loads(reply.as_json())["answer"], schema)
    return reply


def codes(reply: answers.AgentReply) -> list[str]:
    return [finding.code for finding in reply.answer.findings]


# -- the answers


@pytest.mark.parametrize("name", ["check", "requires", "plan", "draw"])
def test_a_tool_says_what_its_command_prints(name: str, program: str, capsys: Capture) -> None:
    reply = replied(name, target=f"{program}:experiment", sizes={"B": 8})
    words = ["--format", "agent"] if name == "check" else []
    assert main([name, f"{program}:experiment", "--set", "B=8", *words]) == output.OK
    printed = capsys.readouterr().out.strip()
    assert printed.endswith(reply.text)  # plan prints the report before it
    assert reply.text
    assert (reply.answer.ok, reply.failed, codes(reply)) == (True, False, [])


def test_an_answer_has_what_the_json_of_its_command_has(program: str, capsys: Capture) -> None:
    target = f"{program}:experiment"
    plan, demands = replied("plan", target=target).answer, replied("requires", target=target).answer
    assert isinstance(plan, answers.PlanAnswer)
    assert isinstance(demands, answers.RequiresAnswer)
    assert main(["plan", target, "--format", "json"]) == output.OK
    assert json.loads(capsys.readouterr().out)["plan"] == json.loads(json.dumps(plan.plan))["plan"]
    assert main(["requires", target, "--format", "json"]) == output.OK
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(demands.demands))


@pytest.mark.parametrize("name", ["check", "plan", "draw"])
def test_findings_are_typed_and_have_their_patch(name: str, write: Write) -> None:
    reply = replied(name, target=f"{write('program.py', MISSPELLED)}:experiment")
    [finding] = reply.answer.findings
    assert (reply.answer.ok, reply.failed, finding.code, finding.severity) == (False, False, "HF202", "error")
    assert (finding.place.file, finding.place.column) == ("program.py", 15)
    assert "anwser" in Path("program.py").read_text("utf-8").splitlines()[finding.place.line - 1]
    assert finding.help == ("did you mean 'answer'?",)
    process = subprocess.run(["git", "apply"], input=finding.patch.encode(), capture_output=True, check=False)
    assert process.returncode == 0, process.stderr
    assert Path("program.py").read_text("utf-8") == PROGRAM


def test_a_configuration_of_another_library_is_checked(write: Write) -> None:
    write("run.sh", "python3 -m verl.trainer.main_ppo \\\n  trainer.n_gpus_per_node=8 trainer.nnodez=1\n")
    reply = replied("check", target="run.sh", library="verl")
    assert "HF971" in codes(reply)
    assert [finding.place.line for finding in reply.answer.findings if finding.code == "HF971"] == [2]


def test_a_page_is_that_of_the_command(capsys: Capture) -> None:
    assert main(["explain", "hf310"]) == output.OK
    assert replied("explain", code="310").text == capsys.readouterr().out.rstrip()
    listed = replied("explain").answer
    assert isinstance(listed, answers.ExplainAnswer)
    assert listed.page.startswith("HF101  ")


FAILURES = {
    "a file that is not there": ("nowhere.py", "", "there is no file 'nowhere.py'", 0),
    "an attribute that is not there": ("a.py:step", "x = 1", "'a.py' has no attribute 'step'", 0),
    "a module that raises": ("a.py", "x = 1\n\nx / 0\n", "ZeroDivisionError: division by zero", 3),
    "a module that does not parse": ("a.py", "x = 1\nx = (\n", "SyntaxError: '(' was never closed", 2),
    "a module that exits": ("a.py", "import sys\nsys.exit(5)\n", "exits, by SystemExit(5)", 0),
    "no program": ("a.py", "x = 1\n", "neither an hf.Experiment nor a function under @hf.dataflow", 0),
}


@pytest.mark.parametrize("name", ["check", "requires", "plan", "draw"])
@pytest.mark.parametrize("case", FAILURES)
def test_a_target_that_cannot_be_used_is_a_finding(case: str, name: str, write: Write) -> None:
    target, text, message, line = FAILURES[case]
    write("a.py", text)
    reply = replied(name, target=target)
    [finding] = reply.answer.findings
    assert (reply.failed, reply.answer.ok, finding.code) == (True, False, "HF992")
    assert message in finding.message
    assert "Traceback" not in reply.text
    assert (finding.place.file, finding.place.line) == (("a.py", line) if line else ("", 0))


def test_a_dim_and_a_code_that_are_not_there_are_findings(program: str) -> None:
    unknown = replied("check", target=f"{program}:experiment", sizes={"Q": 3})
    assert codes(unknown) == codes(replied("explain", code="HF3100")) == ["HF992"]
    assert "the program has no dim 'Q'" in unknown.text


def test_a_bug_is_a_finding_and_its_traceback_is_none(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(explaining, "all_codes", lambda: dict[str, str]()["all"])
    reply = replied("explain")
    assert codes(reply) == ["HF993"]
    assert reply.failed
    assert "Traceback" not in reply.text
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("tool", answers.TOOLS.values(), ids=list(answers.TOOLS))
def test_a_tool_that_executes_code_says_so(tool: answers.Tool) -> None:
    listed = ServedTool(tool).as_listed()
    assert listed.annotations is not None
    assert listed.annotations.read_only_hint is not tool.executes
    assert ("execute" in str(listed.description).lower()) is tool.executes
    described = listed.input_schema["properties"]
    assert all(parameter["description"] for parameter in described.values())


def test_the_agent_format_counts_a_target_that_cannot_be_used(write: Write, capsys: Capture) -> None:
    assert main(["check", write("a.py", "x = 1\nx / 0\n"), "--format", "agent"]) == output.USAGE
    head, message, *_, total = capsys.readouterr().out.splitlines()
    assert head == "HF992 error a.py:2"
    assert message.endswith("fails: ZeroDivisionError: division by zero")
    assert total == "total: 1 errors, 0 warnings"


# -- over stdio


@asynccontextmanager
async def served(folder: Path, *words: str) -> AsyncIterator[Client]:
    """A client of a server in ``folder``."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "hfdsl", "mcp", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""},
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


def test_a_client_lists_and_calls_the_tools(write: Write, tmp_path: Path) -> None:
    write("loud.py", LOUD + MISSPELLED)

    def mend() -> None:
        """Change the file within the second of the last change."""
        changed = int(Path("loud.py").stat().st_mtime)
        write("loud.py", LOUD + PROGRAM)
        os.utime("loud.py", (changed, changed))

    async def talk() -> None:
        async with served(tmp_path) as client:
            listed = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(listed) == set(answers.TOOLS)
            refuted = await client.call_tool("check", {"target": "loud.py:experiment"})
            assert not refuted.is_error
            assert [finding["code"] for finding in refuted.structured_content["findings"]] == ["HF202"]
            mend()  # an edited file is read again
            clean = await client.call_tool("check", {"target": "loud.py:experiment"})
            assert clean.structured_content == {"ok": True, "findings": [], "left_out": []}
            assert text_of(clean) == "total: 0 errors, 0 warnings"
            failed = await client.call_tool("check", {"target": "loud.py", "dims": {"B": 7}})
            assert failed.is_error
            assert text_of(failed).startswith(
                "HF992 error\ncheck takes target, sizes, cluster, library, arguments; dims: "
            )
            assert (await client.call_tool("launch", {})).is_error

    anyio.run(talk)


def text_of(result: Any) -> str:
    [block] = result.content
    return str(block.text)


async def all_tools(client: Client) -> None:
    questions = {name: {"target": "loud.py:experiment"} for name in answers.TOOLS if name != "explain"}
    for name, question in {**questions, "explain": {"code": "HF310"}}.items():
        result = await client.call_tool(name, question)
        assert not result.is_error, text_of(result)
        assert result.structured_content["ok"]


async def ended_calls(client: Client) -> None:
    for target in ("ends.py", "waits.py"):
        result = await client.call_tool("check", {"target": target})
        assert result.is_error
        assert [finding["code"] for finding in result.structured_content["findings"]] == ["HF993"]


@pytest.mark.nightly
@pytest.mark.parametrize(("talk", "patience"), [(all_tools, 280), (ended_calls, 2)], ids=["all tools", "ended calls"])
def test_a_client_calls(talk: Callable[[Client], Awaitable[None]], patience: int, write: Write, tmp_path: Path) -> None:
    write("loud.py", LOUD + PROGRAM)
    write("ends.py", "import os\nos._exit(7)\n")
    write("waits.py", "import threading\nthreading.Event().wait()\n")
    (tmp_path / "elsewhere").mkdir()

    async def run() -> None:
        async with served(tmp_path / "elsewhere", "--folder", str(tmp_path), "--patience", str(patience)) as client:
            await talk(client)

    anyio.run(run)


# -- the command


def test_the_command_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delitem(sys.modules, "hfdsl.tools.serving")
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    assert main(["mcp"]) == output.FINDINGS
    assert re.search(r"HF990.*pip install 'hfdsl\[mcp\]'", capsys.readouterr().err)


@pytest.mark.parametrize("patience", ["0", "-1", "nan", "inf", "soon"])
def test_patience_is_a_positive_number_of_seconds(patience: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["mcp", "--patience", patience])
    assert "--patience" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(capsys: Capture) -> None:
    assert main(["mcp", "--folder", "nowhere"]) == output.USAGE
    assert "cannot go to the folder 'nowhere'" in capsys.readouterr().err
