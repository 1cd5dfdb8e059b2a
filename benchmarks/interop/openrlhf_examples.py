"""OpenRLHF's example scripts, and mutants of them, against ``hfdsl check --from openrlhf`` and OpenRLHF itself.

Run with a checkout of OpenRLHF, of which nothing needs to be installed::

    python benchmarks/interop/openrlhf_examples.py CHECKOUT

OpenRLHF's verdict is that of its own ``cli/train_ppo_ray.py``: its parser, its checks, and ``train`` with mocks in the
place of Ray and its processes. What processes would refuse is repeated by reading: the mesh of ``setup_distributed``,
the batch sizes of DeepSpeed, and the samples of each rank.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import runpy
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from hfdsl.check.codes import CODES
from hfdsl.interop.checking import report_on
from hfdsl.interop.openrlhf.reading import from_script, trainer_arguments
from hfdsl.interop.options import read_options
from hfdsl.interop.readers import LIBRARIES
from hfdsl.interop.reading import Inputs
from hfdsl.interop.shell_text import text_of
from hfdsl.interop.shell_values import read_script
from hfdsl.interop.text import ReadError, SourceText, read_source

PROGRAM = "openrlhf/cli/train_ppo_ray.py"
SIZES = ("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size", "train.batch_size",
         "train.micro_batch_size", "actor.num_gpus_per_node", "actor.num_nodes", "ref.num_gpus_per_node",
         "critic.num_gpus_per_node", "reward.num_gpus_per_node", "vllm.num_engines", "vllm.tensor_parallel_size",
         "ds.ring_attn_size", "ds.tensor_parallel_size")  # fmt: skip  # a list of options
SWITCHES = ("train.colocate_all", "train.colocate_actor_ref", "train.async_enable", "train.partial_rollout_enable",
            "train.dynamic_batch_enable", "vllm.enable_sleep", "algo.dynamic_filtering_enable")  # fmt: skip
OTHERS = ("--algo.advantage.estimator gropo", "--algo.advantage.estimator gae", "--algo.advantage.estimator rloo",
          "--train.batchsize 64", "--train.colocate_all True", "--rollout.vllm_generate_batch_size 4096",
          "--data.max_images_per_prompt 1", "--eval.dataset my/eval", "--ckpt.save_steps 0", "--train.batch_size 1e3",
          "--actor.eps_clip_low_high 0.2", "--actor.dual_clip 0.5", "--vllm.num_engines 0",
          "--algo.dynamic_filtering_range 1 0")  # fmt: skip  # a list of options
REQUIRED = ("actor.model_name_or_path", "data.prompt_dataset", "reward.model_name_or_path", "reward.remote_url",
            "train.agent_func_path", "vllm.num_engines")  # fmt: skip


class RefusedError(Exception):
    """What a process of OpenRLHF would refuse."""


def verdict(checkout: Path, words: list[str]) -> str:
    """Why OpenRLHF refuses a command; empty where it accepts it."""
    spec = importlib.util.spec_from_file_location("openrlhf.utils.config", checkout / "openrlhf/utils/config.py")
    assert spec is not None  # guards for the type checker
    assert spec.loader is not None
    config = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    utils = MagicMock(config=config)
    absent = ("ray", "ray.util", "ray.util.placement_group", "openrlhf", "openrlhf.trainer", "openrlhf.trainer.ray",
              "openrlhf.trainer.ray.launcher", "openrlhf.trainer.ray.ppo_actor", "openrlhf.trainer.ray.ppo_critic",
              "openrlhf.trainer.ppo_trainer", "openrlhf.trainer.ppo_trainer_async")  # fmt: skip
    modules: dict[str, Any] = {name: MagicMock() for name in absent}
    modules |= {"openrlhf.utils": utils, "openrlhf.utils.config": config}
    try:
        with (
            patch.dict(sys.modules, modules),
            patch.object(sys, "argv", ["train_ppo_ray.py", *words]),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            runpy.run_path(str(checkout / PROGRAM), run_name="__main__")
        start_processes(utils.get_strategy.call_args[0][0])
    except BaseException as error:  # noqa: BLE001  # whatever OpenRLHF raises is its verdict
        return f"{type(error).__name__}: {error}"
    return ""


def demand(holds: object, words: str) -> None:
    """Refuse what a process refuses."""
    if not holds:
        raise RefusedError(words)


def start_processes(args: Any) -> None:
    """What the processes of OpenRLHF would refuse, by reading."""
    shared, dynamic = args.ds.ring_attn_size * args.ds.tensor_parallel_size, args.train.dynamic_batch_enable
    models = ["actor"]
    models += ["ref"] if args.algo.kl.init_coef > 0 else []
    models += ["critic"] if args.critic.model_name_or_path else []
    models += [] if args.reward.remote_url else ["reward"]
    demand(args.actor.model_name_or_path and args.data.prompt_dataset, "no model or prompts")
    demand(args.reward.remote_url or args.reward.model_name_or_path, "no rewards")
    demand(args.vllm.num_engines and args.vllm.num_engines > 0 and args.vllm.tensor_parallel_size > 0, "no engines")
    demand(args.ckpt.save_steps and args.eval.steps and args.logger.logging_steps, "a period of 0")
    demand(args.actor.dual_clip is None or args.actor.dual_clip > 1, "dual_clip")
    demand(args.train.batch_size > 0, "DeepSpeed: train batch size has to be greater than 0")
    prompts = min(args.rollout.batch_size, args.rollout.vllm_generate_batch_size)
    samples = list(range(prompts * args.rollout.n_samples_per_prompt))
    for role in models:
        model = getattr(args, role)
        gpus = model.num_nodes * model.num_gpus_per_node
        demand(gpus > 0 and gpus % shared == 0, f"the mesh of {role}")
        if args.train.colocate_all and not (args.critic.model_name_or_path and args.train.colocate_critic_reward):
            demand(gpus <= args.actor.num_nodes * args.actor.num_gpus_per_node, f"no bundle for {role}")
        trained, ranks = role in ("actor", "critic"), gpus // shared
        if not (dynamic and trained):  # DeepSpeedConfig._batch_assertion, with one tensor-parallel rank
            demand(args.train.batch_size % (args.train.micro_batch_size * ranks) == 0, f"DeepSpeed: {role}")
        if dynamic:
            demand(not trained or args.train.batch_size >= ranks, f"local batch of {role}")
            demand(not trained or len(samples) >= args.train.batch_size, "no optimizer step")
            continue
        size = args.rollout.micro_batch_size
        batches = [samples[i : i + size] for i in range(0, len(samples), size)]
        demand(len(batches) >= ranks, f"sample batches of {role}")
        per_rank = -(-len(batches) // ranks)
        hands = [sum(map(len, batches[rank * per_rank : (rank + 1) * per_rank])) for rank in range(ranks)]
        demand(not trained or len({hand // args.train.micro_batch_size for hand in hands}) == 1, f"{role} waits")


def findings(words: list[str]) -> list[str]:
    """The errors that hfdsl finds in a command."""
    text = f"python3 -m openrlhf.cli.train_ppo_ray {shlex.join(words)}"
    [reading] = from_script(SourceText("run.sh", text), Inputs("run.sh"))
    report = report_on(LIBRARIES["openrlhf"], reading, "run.sh")
    return [f"{f.code} {f.message}" for f in report if CODES[f.code].severity == "error"]


def mutants(words: list[str]) -> Iterator[list[str]]:
    """A command with one knob changed at a time; of an option that is given twice, the last one counts."""
    text = f"x {shlex.join(words)}"
    source = SourceText("run.sh", text)
    options = read_options(read_script(source).launches[0].words[1:], source.span(0, 0), dashes=False)
    values = {setting.key: setting.value for setting in options.settings}
    for key in SIZES:
        if isinstance(value := values.get(key), int):
            for number in dict.fromkeys((value + 1, value - 1, value * 2, value * 3, max(1, value // 2), 0)):
                yield [*words, f"--{key}", str(number)]
        elif key.startswith("ds."):
            yield from ([*words, f"--{key}", str(number)] for number in (2, 3))
    for key in SWITCHES:
        name = f"--{key}"
        yield [word for word in words if word != name] if name in words else [*words, name]
    for other_option in OTHERS:
        yield [*words, *other_option.split()]
    for key in REQUIRED:
        if f"--{key}" in words:
            i = words.index(f"--{key}")
            yield [*words[:i], *words[i + 2 :]]


def main(checkout: Path) -> None:
    """Compare the examples and their mutants."""
    counts: Counter[str] = Counter()
    seconds = list[float]()
    for path in sorted((checkout / "examples").rglob("*.sh")):
        if "train_ppo_ray" not in path.read_text("utf-8"):
            continue
        try:
            from_script(read_source(path), Inputs(str(path)))
        except ReadError as error:
            counts["not read"] += 1
            print(path.name, "|", error.message)
            continue
        for launch in read_script(read_source(path)).launches:
            start = trainer_arguments(launch.words)
            if start is None:
                continue
            words = [text_of(word) or "unknown" for word in launch.words[start:]]
            for number, command in enumerate((words, *mutants(words))):
                kind = "mutants" if number else "examples"
                refused = verdict(checkout, command)
                began = time.perf_counter()
                reported = findings(command)
                seconds.append(time.perf_counter() - began)
                agree = "both refuse" if refused and reported else "both accept"
                if bool(refused) != bool(reported):
                    agree = "only OpenRLHF refuses" if refused else "only hfdsl refuses"
                    print(path.name, set(command) - set(words), "|", refused[:160], "|", reported[:1])
                counts[f"{kind}: {agree}"] += 1
    for name, count in sorted(counts.items()):
        print(f"{name:40}{count:6}")
    print(
        f"{'median and longest check, ms':40}{sorted(seconds)[len(seconds) // 2] * 1e3:6.1f}{max(seconds) * 1e3:8.1f}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
