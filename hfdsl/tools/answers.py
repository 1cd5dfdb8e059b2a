"""The tools of the MCP server: ``check``, ``explain``, ``requires``, ``plan`` and ``draw``, each of one question.

Every call has a process of its own, ``python -m hfdsl.tools.answers``, which reads ``{"tool": ..., "question": ...}``
and writes an ``AgentReply``. So an edited file is read again, and whatever a program does when it is imported (print,
exit, change modules, hang) does not reach the server.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import hfdsl
from hfdsl.check.findings import Finding, Label
from hfdsl.check.raised import findings_of
from hfdsl.check.report import CheckError, Report
from hfdsl.errors import HfError
from hfdsl.graph.spans import NOWHERE
from hfdsl.tools import explaining, output
from hfdsl.tools.agent_findings import AgentFinding, unusable
from hfdsl.tools.checking import Question, outcomes
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.formats import as_agent, omissions
from hfdsl.tools.importing import UsageError
from hfdsl.tools.target import load

SizeValues: TypeAlias = dict[str, str | int | float | bool]


# -- questions


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a question, and its sizes."""

    target: str
    """path/to/file.py, path/to/file.py:attribute, package.module:attribute, or the TOML file of a run."""
    sizes: SizeValues = field(default_factory=dict)
    """Sizes that differ from the program's own, such as {"B": 64}; of a TOML file any field."""


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """A program, its sizes, and the cluster that it is to fit."""

    target: str
    """path/to/file.py, path/to/file.py:attribute, package.module:attribute, or the TOML file of a run."""
    sizes: SizeValues = field(default_factory=dict)
    """Sizes that differ from the program's own, such as {"B": 64}; of a TOML file any field."""
    cluster: str = ""
    """A TOML file that describes the nodes; empty for the program's own."""


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program of hfdsl, or a configuration of another library."""

    target: str
    """path/to/file.py, file.py:attribute, package.module:attribute, or a TOML file; with library, what it runs from."""
    sizes: SizeValues = field(default_factory=dict)
    """Sizes that differ from the program's own, such as {"B": 64}; of a TOML file any field."""
    cluster: str = ""
    """A TOML file that describes the nodes; empty for the program's own."""
    library: str = ""
    """Whose configuration the target is: verl, trl, nemo-rl or openrlhf; empty for hfdsl."""
    arguments: str = ""
    """With library: overrides, as they follow the script on a command line."""


@dataclass(frozen=True, slots=True)
class CodeQuestion:
    """The code to explain."""

    code: str = ""
    """Such as HF310; empty for the list of all codes."""


# -- answers


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer:
    """The fields of every answer."""

    ok: bool
    """Whether there is no error among the findings."""
    findings: tuple[AgentFinding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAnswer(AgentAnswer):
    """All findings of a check."""

    left_out: tuple[str, ...] = ()
    """The omissions of the check, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainAnswer(AgentAnswer):
    """The page of a code."""

    page: str = ""
    """The rule, a wrong and a right program; without a code, a line for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiresAnswer(AgentAnswer):
    """The demands on every dim, and the sizes that satisfy them."""

    demands: dict[str, Any] | None = None
    """As hfdsl requires --format json: of each dim which sizes are possible, and every demand with its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer(AgentAnswer):
    """The places of all calls, and the transfers between them."""

    plan: dict[str, Any] | None = None
    """As hfdsl plan --format json: processes, steps, edges with columns and bytes, peak memory; none with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawAnswer(AgentAnswer):
    """A drawing of the plan."""

    mermaid: str = ""
    """A flowchart; empty with an error."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """An answer, with its text for a model; ``failed`` if the tool could not do its work."""

    answer: AgentAnswer
    text: str
    failed: bool = False

    def as_json(self) -> str:
        """For the server."""
        return json.dumps({"answer": asdict(self.answer), "text": self.text, "failed": self.failed}, default=repr)


# -- the tools


def check(question: CheckedProgram) -> AgentReply:
    """Report every mistake that can be known before launch, each with its line and changes that were tried.

    A Python target is executed as an import does, from its first line to its last, and a TOML file imports the modules
    that it names; there is no sandbox. Bodies of roles do not run. Configurations of other libraries are only parsed.
    """
    request = Question(
        targets=[question.target],
        sizes=_texts(question.sizes),
        discover=False,
        cluster=question.cluster or None,
        library=question.library,
        arguments=question.arguments,
    )
    results = list(outcomes(request))
    for failure in (outcome.failure for outcome in results if outcome.report is None):
        raise UsageError(failure)
    reports = [outcome.report for outcome in results if outcome.report is not None]
    left_out = tuple(f"{level}: {text}" for level, text in omissions(reports))
    answer = CheckAnswer(ok=all(reports), findings=_agent_findings(reports), left_out=left_out)
    return AgentReply(answer, as_agent(reports, []))


def explain(question: CodeQuestion) -> AgentReply:
    """Print the rule of a code with a wrong and a right program, or list all codes. Runs no code of the user."""
    page = explaining.page_of(question.code)[1] if question.code else explaining.all_codes()
    return AgentReply(ExplainAnswer(ok=True, page=page), page.rstrip())


def requires(question: Program) -> AgentReply:
    """Print what a program demands of its sizes, and which sizes work. Executes the target, as check does."""
    from hfdsl.tools.requiring import Demands

    demands = Demands.of(load(question.target, _texts(question.sizes)))
    return AgentReply(RequiresAnswer(ok=True, demands=demands.as_dict()), str(demands))


def plan(question: PlacedProgram) -> AgentReply:
    """Print where everything runs, which columns and bytes move, and the peak memory; launches nothing.

    Executes the target, as check does. No cluster or GPU is needed.
    """
    from hfdsl.tools.plan_json import plans_as_dict

    target = load(question.target, _texts(question.sizes), question.cluster or None)
    plans = target.plans("plan")
    reports = [compiled.report for compiled in plans]
    answer = PlanAnswer(ok=True, findings=_agent_findings(reports), plan=plans_as_dict(target, plans))
    warnings = [as_agent(reports, [])] if answer.findings else []
    return AgentReply(answer, "\n\n".join([*warnings, target.plans_text(plans)]))


def draw(question: Program) -> AgentReply:
    """Draw the plan as a Mermaid flowchart. Executes the target, as check does."""
    from hfdsl.tools.mermaid import flowchart

    target: CommandTarget = load(question.target, _texts(question.sizes))
    plans = target.plans("draw")
    mermaid = flowchart(target.scene(plans)).rstrip()
    return AgentReply(
        DrawAnswer(ok=True, findings=_agent_findings([plan.report for plan in plans]), mermaid=mermaid), mermaid
    )


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its function with the types of its question and answer; ``executes`` if it runs the user's code."""

    answer: Callable[[Any], AgentReply]
    asks: type[Any]
    answers: type[Any]
    executes: bool = True

    @property
    def name(self) -> str:
        """As clients call it."""
        return self.answer.__name__

    @property
    def description(self) -> str:
        """For models."""
        return " ".join((self.answer.__doc__ or "").split())


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(check, CheckedProgram, CheckAnswer),
        Tool(explain, CodeQuestion, ExplainAnswer, executes=False),
        Tool(requires, Program, RequiresAnswer),
        Tool(plan, PlacedProgram, PlanAnswer),
        Tool(draw, Program, DrawAnswer),
    )
}


def reply(tool: Tool, question: object) -> AgentReply:
    """Reply to a question; errors become findings, and a traceback goes only to stderr."""
    try:
        return tool.answer(question)
    except UsageError as error:
        return failed(tool, unusable(str(error)))
    except CheckError as error:
        return refuted(tool, error.report)
    except HfError as error:
        if findings := findings_of(error):
            return refuted(tool, Report("", findings))
        return failed(tool, Finding("HF992", str(error), Label(NOWHERE)))
    except Exception as error:  # noqa: BLE001  # every mistake of a user has been reported above
        traceback.print_exc()
        kind = f"{type(error).__name__}: {error}"
        return failed(tool, unanswered(f"this is a bug in hfdsl {hfdsl.__version__}; please report it ({kind})"))


def refuted(tool: Tool, report: Report) -> AgentReply:
    """The reply about a program with errors."""
    return AgentReply(tool.answers(ok=False, findings=_agent_findings([report])), as_agent([report], []))


def failed(tool: Tool, finding: Finding) -> AgentReply:
    """The reply of a tool that could not do its work."""
    shown = AgentFinding.of(finding)
    return AgentReply(tool.answers(ok=False, findings=(shown,)), str(shown), failed=True)


def unanswered(why: str) -> Finding:
    """A call that had no answer."""
    return Finding("HF993", why, Label(NOWHERE))


def _agent_findings(reports: Sequence[Report]) -> tuple[AgentFinding, ...]:
    return tuple(AgentFinding.of(finding) for report in reports for finding in report)


def _texts(sizes: SizeValues) -> list[str]:
    """Sizes as texts of the command line."""
    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in sizes.items()]


def main() -> None:
    """Answer the question on stdin."""
    # Python tells versions of a file apart by second and size, and an agent may change a letter within a second.
    sys.dont_write_bytecode = True
    request = json.loads(sys.stdin.read())
    tool = TOOLS[request["tool"]]
    with output.own_stdout(for_good=True):
        output.say(reply(tool, tool.asks(**request["question"])).as_json())


if __name__ == "__main__":
    main()
