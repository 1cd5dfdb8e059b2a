"""Real scripts of verl, and mutants of them, against ``hfdsl check --from verl`` and against verl itself.

Three steps, of which the second runs with a Python that has verl without its engines::

    python benchmarks/interop/verl_examples.py ask FOLDER > questions.jsonl     # scripts as hfdsl reads and judges them
    python benchmarks/interop/verl_oracle.py < questions.jsonl > verdicts.jsonl
    python benchmarks/interop/verl_examples.py compare questions.jsonl verdicts.jsonl

``FOLDER`` is a checkout of verl, or any folder with scripts; ``--mutants N`` takes N scripts that verl accepts (of an
earlier ``verdicts.jsonl``, ``--accepted``) and changes one knob of each at a time. Nothing of the scripts is executed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import report_on
from hfdsl.interop.hydra import read_arguments
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.shell_text import text_of
from hfdsl.interop.shell_values import read_script
from hfdsl.interop.text import ReadError, SourceText, read_source
from hfdsl.interop.verl.reading import from_script, trainer_arguments

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
SIZES = (
    "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ROLLOUT}.n",
    f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "trainer.nnodes",
    f"{REF}.log_prob_micro_batch_size_per_gpu", "trainer.n_gpus_per_node",
    f"{ACTOR}.megatron.tensor_model_parallel_size", f"{ACTOR}.megatron.pipeline_model_parallel_size",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
)  # fmt: skip  # a list of keys
SWITCHES = (f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz", f"{ROLLOUT}.val_kwargs.do_sample")
TEXTS = (
    ("algorithm.adv_estimator", "gropo"), (f"{ACTOR}.loss_agg_mode", "token_mean"), (f"{ROLLOUT}.mode", "sync"),
    ("trainer.v1.trainer_mode", "async"), ("trainer.v1.trainer_mode", "separate_async"),
    (f"{ACTOR}.strategy", "megatron"), (f"{ROLLOUT}.pipeline_model_parallel_size", "2"),
    (f"{ROLLOUT}.temperature", "0"), (f"{ROLLOUT}.name", "???"),
    ("critic.enable", "True"),
)  # fmt: skip
TYPOS = (
    "data.train_batchsize=64",
    f"{ACTOR}.ppo_minibatch_size=64",
    f"+{ACTOR}.clip_ratio=0.3",
    f"+{ACTOR}.cliprange=0.3",
)


def scripts(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Every run that a script of the folder starts, with its overrides; those that cannot be read as well."""
    for path in sorted(folder.rglob("*.sh")):
        name = str(path.relative_to(folder))
        if "main_ppo" not in path.read_text("utf-8", errors="replace"):
            continue
        try:
            readings = LIBRARIES["verl"].read(Inputs(str(path), None, environment))
        except ReadError as error:
            yield {"id": name, "unread": error.message}
            continue
        launches = [
            run for run in read_script(read_source(path), None, environment).launches if trainer_arguments(run.words)
        ]
        for number, (reading, launch) in enumerate(zip(readings, launches, strict=True)):
            report = report_on(LIBRARIES["verl"], reading, name)
            start = trainer_arguments(launch.words) or 0
            words = [text_of(word) for word in launch.words[start:]]
            yield {
                "id": f"{name}#{number}",
                "overrides": [word for word in words if word is not None and not word.startswith("-")],
                "name": "ppo_megatron_trainer"
                if any("ppo_megatron" in (word or "") for word in words)
                else "ppo_trainer",
                "left_out": sum(word is None for word in words),
                "findings": [[f.code, f.message, f.primary.span.line] for f in report],
                "not_judged": list(report.coverage.not_judged),
            }


def mutants(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A run with one knob changed at a time, judged in milliseconds."""
    place = read_source(__file__).span(0, 0)
    base = shlex.join(question["overrides"])

    def judged(change: str) -> dict[str, Any]:
        text = f"python3 -m verl.trainer.main_ppo --config-name={question['name']} {base} {shlex.quote(change)}"
        started = time.perf_counter()
        runs = from_script(SourceText("mutant.sh", text), Inputs("mutant.sh"))
        report = report_on(LIBRARIES["verl"], runs[0], "mutant.sh")
        seconds = time.perf_counter() - started
        overrides = [*question["overrides"], change]
        findings = [[f.code, f.message, f.primary.span.line] for f in report]
        identity = f"{question['id']} {change}"
        return {
            "id": identity,
            "overrides": overrides,
            "name": question["name"],
            "findings": findings,
            "seconds": seconds,
        }

    arguments = read_arguments(read_script(SourceText("x", f"x {base}")).launches[0].words[1:], place)
    values = {o.setting.key: o.setting.value for o in arguments.overrides}
    for key in SIZES:
        if isinstance(value := values.get(key), int):
            for number in dict.fromkeys((value + 1, value - 1, value * 2, value * 3, max(1, value // 2), 0)):
                yield judged(f"{key}={number}")
    for key in SWITCHES:
        if isinstance(value := values.get(key), bool):
            yield judged(f"{key}={not value}")
    for key, text in TEXTS:
        yield judged(f"{key}={text}")
    for change in TYPOS:
        yield judged(change)


def is_error(finding: list[Any]) -> bool:
    """Whether a finding refutes a configuration."""
    return CODES[finding[0]].severity == "error"


def compare(questions: list[dict[str, Any]], verdicts: dict[str, dict[str, Any]], library: str = "verl") -> None:
    """Print where hfdsl and a library agree."""
    counts: Counter[str] = Counter()
    for question in questions:
        if "unread" in question:
            counts["another program"] += 1
            continue
        verdict = verdicts.get(question["id"])
        if verdict is None:
            continue
        mine, theirs = any(map(is_error, question["findings"])), not verdict["ok"]
        counts[{(True, True): "both refuse", (False, False): "both accept", (True, False): "only hfdsl refuses",
                (False, True): f"only {library} refuses"}[mine, theirs]] += 1  # fmt: skip
        if theirs:
            counts[f"{library} refuses in {verdict['stage']}{', and hfdsl too' if mine else ''}"] += 1
        counts["with warnings"] += any(not is_error(f) for f in question["findings"])
        if mine != theirs:
            print(
                question["id"],
                "|",
                verdict.get("error", f"{library} accepts")[:160].replace("\n", " "),
                "|",
                question["findings"][:2],
            )
    for name, count in sorted(counts.items()):
        print(f"{name:40}{count:6}")
    if seconds := sorted(s for q in questions if (s := q.get("seconds"))):
        print(f"{'median and longest check, ms':40}{seconds[len(seconds) // 2] * 1e3:6.1f}{seconds[-1] * 1e3:8.1f}")
    if seconds := sorted(v["s"] for v in verdicts.values() if not v["ok"]):
        print(f"{f'median refusal of {library}, ms':40}{seconds[len(seconds) // 2] * 1e3:6.1f}")


def main() -> None:
    """Ask or compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["ask", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--env", action="append", default=["DEVICE=gpu"])
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--accepted", type=Path)
    arguments = parser.parse_args()
    if arguments.task == "compare":
        questions_asked, answered = ([json.loads(line) for line in file.open()] for file in arguments.files)
        compare(questions_asked, {verdict["id"]: verdict for verdict in answered})
        return
    questions = list(scripts(arguments.files[0], dict(pair.split("=", 1) for pair in arguments.env)))
    if arguments.mutants:
        accepted = {v["id"] for line in arguments.accepted.open() if (v := json.loads(line))["ok"]}
        chosen = [q for q in questions if q["id"] in accepted]
        chosen = chosen[:: max(1, len(chosen) // arguments.mutants)][: arguments.mutants]
        questions = [mutant for question in chosen for mutant in mutants(question)]
    for question in questions:
        print(json.dumps(question))


if __name__ == "__main__":
    main()
