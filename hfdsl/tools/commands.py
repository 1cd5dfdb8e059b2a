"""The commands, each from its arguments to its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

from hfdsl.check.codes import CODES
from hfdsl.check.report import CheckError
from hfdsl.errors import HfError, PackageError
from hfdsl.tools.explaining import all_codes, page_of
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import FINDINGS, OK, USAGE, machine, say, show_error, show_json, show_report
from hfdsl.tools.target import load


def check(arguments: argparse.Namespace) -> int:
    """``hfdsl check``."""
    from hfdsl.tools.checking import check_targets

    _refuse_env_alone(arguments)
    if arguments.fix:
        from hfdsl.tools.fixing import fix

        return fix(arguments)
    if arguments.diff:
        raise UsageError("--diff goes with --fix: it shows what would be changed")
    return check_targets(arguments)


def _refuse_env_alone(arguments: argparse.Namespace) -> None:
    if arguments.env and not arguments.library:
        raise UsageError("--env goes with --from: it sets the environment of another library's script")


def replay(arguments: argparse.Namespace) -> int:
    """``hfdsl replay``."""
    from hfdsl.tools.replay import show_replay

    return show_replay(arguments)


def requires(arguments: argparse.Namespace) -> int:
    """``hfdsl requires``."""
    from hfdsl.tools.requiring import requires as show_demands

    return show_demands(load(arguments.target, arguments.set), arguments)


def plan(arguments: argparse.Namespace) -> int:
    """``hfdsl plan``: the report and the plan, for machines one object with both; or a prediction.

    For a run whose steps are rounds and an update, it shows both plans.
    """
    from hfdsl.tools.plan_json import plans_as_dict

    _refuse_env_alone(arguments)
    if not arguments.predict and (arguments.bandwidth or arguments.latency is not None):
        raise UsageError("--bandwidth and --latency go with --predict: they change the predicted times")
    if arguments.library:
        from hfdsl.tools.lowered import show_plans

        return show_plans(arguments)
    try:
        target = load(arguments.target, arguments.set, arguments.cluster)
        plans = target.plans("plan")
    except CheckError as error:
        if not machine(arguments):
            raise
        show_json({"findings": [finding.as_dict() for finding in error.report], "plan": None})
        return FINDINGS
    if arguments.predict and target.rounds is not None:
        raise UsageError(f"--predict covers one dataflow, and {target.rounds}; only a run shows how many")
    if arguments.predict:
        from hfdsl.tools.predicting import show_prediction

        show_prediction(plans[0], arguments)
    elif machine(arguments):
        findings = [finding.as_dict() for plan in plans for finding in plan.report]
        show_json({"findings": findings, **plans_as_dict(target, plans)})
    else:
        for plan in plans:
            show_report(plan.report, arguments)
        say("\n" + target.plans_text(plans))
    return OK


def simulate(arguments: argparse.Namespace) -> int:
    """``hfdsl simulate``."""
    from hfdsl.tools.simulating import show_simulation

    target = load(arguments.target, arguments.set)
    if target.rounds is not None:
        raise UsageError(f"simulate covers one dataflow, and {target.rounds}")
    show_simulation(target.plans("simulate")[0], arguments)
    return OK


def draw(arguments: argparse.Namespace) -> int:
    """``hfdsl draw``: a file, or Mermaid on stdout; findings go to stderr."""
    from hfdsl.tools.draw import check_path, draw_scene
    from hfdsl.tools.mermaid import flowchart

    _refuse_env_alone(arguments)
    try:
        if arguments.output:
            check_path(arguments.output)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    try:
        if arguments.library:
            from hfdsl.tools.lowered import only_target

            target = only_target(arguments)
        else:
            target = load(arguments.target, arguments.set)
        plans = target.plans("draw")
    except CheckError as error:
        show_report(error.report, arguments, sys.stderr)
        return FINDINGS
    for plan in plans:
        if plan.report.findings:
            show_report(plan.report, arguments, sys.stderr)
    scene = target.scene(plans)
    if not arguments.output:
        say(flowchart(scene).rstrip())
        return OK
    try:
        draw_scene(scene, arguments.output)
    except OSError as error:
        raise UsageError(f"cannot write '{arguments.output}': {error.strerror}") from None
    return OK


def convert(arguments: argparse.Namespace) -> int:
    """``hfdsl convert``."""
    from hfdsl.tools.lowered import convert as write_toml

    return write_toml(arguments)


def run(arguments: argparse.Namespace) -> int:
    """``hfdsl run``."""
    from hfdsl.tools.stepping import run_steps

    target = load(arguments.target, arguments.set)
    if arguments.steps is None and target.loaded is not None:
        arguments.steps = target.loaded.config.steps  # the data of a configuration has no end
    return run_steps(target, arguments)


def train(arguments: argparse.Namespace) -> int:
    """``hfdsl train``."""
    file = arguments.config
    if file.partition(":")[0].endswith(".py"):
        raise UsageError(f"train takes the TOML file of a run, and '{file}' is Python: 'hfdsl run {file}' runs it")
    from hfdsl.tools.training import train as train_as_configured

    return train_as_configured(arguments)


def schema(arguments: argparse.Namespace) -> int:
    """``hfdsl schema``."""
    from hfdsl.tools.training import schema as show_schema

    return show_schema(arguments)


def diff(arguments: argparse.Namespace) -> int:
    """``hfdsl diff``: the differing fields of two configurations, or facts of two programs; 2 for an unreadable one."""
    places = arguments.first, arguments.second
    configured = all(place.endswith(".toml") for place in places) or any(Path(place).is_dir() for place in places)
    if configured and (arguments.set or arguments.cluster):
        raise UsageError("--set and --cluster go with programs; two configurations are compared as they are written")
    try:
        if configured:
            from hfdsl.tools.training import diff as show_differences

            return show_differences(arguments)
        from hfdsl.tools.diffing import show_program_differences

        return show_program_differences(arguments)
    except HfError as error:
        show_error(error, arguments)
        return USAGE


def export(arguments: argparse.Namespace) -> int:
    """``hfdsl export``."""
    from hfdsl.tools.training import export as export_model

    return export_model(arguments)


def explain(arguments: argparse.Namespace) -> int:
    """``hfdsl explain``: a page, or the table of codes; with ``--from`` a page about a run of another library."""
    if arguments.library:
        from hfdsl.tools.interop import show_pages  # late: the pages of codes need none of it

        if arguments.code is None:
            raise UsageError("explain --from needs the file of a configuration")
        return show_pages(
            arguments.code, arguments.library, arguments.arguments, arguments.env, as_json=machine(arguments)
        )
    if arguments.code is None:
        if machine(arguments):
            show_json(
                {code: {"title": entry.title, "severity": entry.severity} for code, entry in sorted(CODES.items())}
            )
        else:
            say(all_codes())
        return OK
    code, page = page_of(arguments.code)
    if machine(arguments):
        show_json({"code": code, **asdict(CODES[code]), "page": page})
    else:
        say(page.rstrip())
    return OK


def mcp(arguments: argparse.Namespace) -> int:
    """``hfdsl mcp``.

    Raises:
        PackageError: HF990 without the SDK of the Model Context Protocol.
    """
    try:
        from hfdsl.tools.serving import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise PackageError(
                "HF990", "hfdsl mcp needs the package mcp, from version 2.0: pip install 'hfdsl[mcp]'"
            ) from None
        raise
    if arguments.folder:
        try:
            os.chdir(arguments.folder)
        except OSError as error:
            raise UsageError(f"cannot go to the folder '{arguments.folder}': {error.strerror}") from None
    serve(arguments.patience)
    return OK


def doctor(arguments: argparse.Namespace) -> int:
    """``hfdsl doctor``."""
    from hfdsl.tools.doctor import examine

    return examine(arguments)
