"""Every fix, applied to the text of its program, removes its finding and adds none."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hfdsl.check.findings import Finding, Fix
from hfdsl.check.repair.edits import apply
from hfdsl.check.report import Report
from tests.check.fixture_programs import FIXTURES
from tests.check.test_fixtures import NAMES
from tests.check.test_fixtures import report as report_of

numbers = itertools.count()

FIXABLE = {
    "hf201",
    "hf202",
    "hf202_method",
    "hf212",
    "hf303",
    "hf310",
    "hf310_minibatches",
    "hf313",
    "hf313_function",
    "hf322",
    "hf322_length",
    "hf323",
    "hf353_loss",
    "hf358",
    "hf363",
    "hf364",
    "hf501",
    "hf540",
    "hf946_bonus",
    "hf946_own",
}
"""Fixtures whose repair is certain; in most others there is more than one, or it is not in the text."""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Any]:
    """Makes a module of a text, in a file of its own."""
    names = []

    def make(text: str) -> Any:
        name = f"fixed_{next(numbers)}"
        file = tmp_path / f"{name}.py"
        file.write_text(text, encoding="utf-8", newline="")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        names.append(name)
        spec.loader.exec_module(module)
        return module

    yield make
    for name in names:
        del sys.modules[name]


def kinds(report: Report) -> Counter[tuple[str, int]]:
    return Counter((finding.code, finding.primary.span.line) for finding in report)


def text_of(module: ModuleType) -> str:
    file = Path(str(module.__file__))
    return file.read_bytes().decode()


def mends(load: Any, text: str, finding: Finding, fix: Fix, before: Report) -> None:
    after = kinds(load(apply(text, fix.edits)).report())
    place = finding.code, finding.primary.span.line
    assert after <= kinds(before), (fix, after)
    assert after[place] < kinds(before)[place], fix


@pytest.mark.parametrize("name", NAMES)
def test_every_fix_of_a_fixture_mends_it(name: str, load: Any) -> None:
    before = report_of(name)
    assert name not in FIXABLE or any(finding.fixes for finding in before)
    text = (FIXTURES / f"{name}.py").read_text("utf-8")
    for finding in before:
        for fix in finding.fixes:
            mends(load, text, finding, fix, before)


HEAD = """# mypy: ignore-errors
import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B, P]


class Rollout(hf.Batch):
    probs: hf.f32[B, R]
    prob: hf.f32[B]
    ids: hf.i64[B, P]


class Scores(hf.Batch):
    reward: hf.f32[B]


class Actor(hf.Worker):
    def __init__(self, micro_batch: int = 1, mini_batch: int = 1) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def score(self, probs: hf.f32[B, R]) -> Scores: ...

    @register(Dispatch.THREE_D_PROTO)
    def scale(self, *, prompts: Prompts, rollout: Rollout) -> Scores: ...

    @register(Dispatch.THREE_D_PROTO)
    def weigh(self, rollout: Rollout, scores: Scores) -> Scores: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, reward: hf.f32[B]) -> None: ...


"""

CASES = {
    "of two near columns the one that fits": (
        "    return actor.score(actor.generate(prompts).probz)\n",
        ["replace 'probz' by 'probs'"],
    ),
    "after letters of more than one byte": (
        "    é = actor.generate(prompts); return actor.score(é.probz)\n",
        ["replace 'probz' by 'probs'"],
    ),
    "over two lines": (
        "    return actor.score(\n        actor\n        .generate(prompts)\n        .probz\n    )\n",
        ["replace 'probz' by 'probs'"],
    ),
    "a column of two reads in one line": (
        "    rollout = actor.generate(prompts)\n    return actor.score(rollout.probs), actor.score(rollout.prbs)\n",
        ["replace 'prbs' by 'probs'"],
    ),
    "a name that is put together": ("    return actor.score(getattr(actor.generate(prompts), 'pro' + 'bz'))\n", []),
    "a keyword of a record": (
        "    return Scores(rewards=actor.generate(prompts).prob)\n",
        ["replace 'rewards' by 'reward'"],
    ),
    "keyword-only ports": (
        "    return actor.scale(prompts, actor.generate(prompts))\n",
        ["write 'prompts=' before it", "write 'rollout=' before it"],
    ),
    "a column to be repeated": (
        (
            "    rollout = actor.generate(prompts)\n    scores = actor.score(rollout.probs)\n"
            "    actor.update(hf.repeat(rollout, 4), scores.reward)\n"
        ),
        ["repeat what is wired to 'reward': hf.repeat(..., 4)"],
    ),
    "an argument over two lines": (
        (
            "    rollout = actor.generate(hf.repeat(prompts, 2))\n    scores = actor.score(rollout.probs)\n"
            "    actor.update(\n        actor.generate(\n            prompts\n        ),\n        scores.reward)\n"
        ),
        ["repeat what is wired to 'rollout': hf.repeat(..., 2)"],
    ),
    "a repeat that brings another mistake": (
        (
            "    rollout = actor.generate(prompts)\n    scores = actor.score(hf.repeat(rollout, 2).probs)\n"
            "    actor.update(rollout, actor.weigh(rollout, scores).reward)\n"
        ),
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_fixes_of_a_body(case: str, load: Any) -> None:
    body, titles = CASES[case]
    text = f"{HEAD}@hf.dataflow\ndef program(prompts: Prompts, actor: Actor):\n{body}\n\n"
    text += "def report():\n    return program.check()\n"
    before = load(text).report()
    assert not before.ok
    assert [fix.title for finding in before for fix in finding.fixes] == titles
    for finding in before:
        for fix in finding.fixes:
            mends(load, text, finding, fix, before)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("import hfdsl as hf\nfrom hfdsl import repeat as again\n", "hf.repeat"),
        ("from hfdsl import repeat as again\nimport hfdsl as hf\n", "again"),
    ],
)
def test_a_repeat_is_spelt_as_the_module_spells_it(start: str, name: str, load: Any) -> None:
    body = "    scores = actor.score(actor.generate(prompts).probs)\n"
    body += f"    actor.update(actor.generate({name}(prompts, 2)), scores.reward)\n"
    text = HEAD.replace("import hfdsl as hf\n", start)
    text += f"@hf.dataflow\ndef program(prompts: Prompts, actor: Actor):\n{body}\n\n"
    [finding] = load(text + "def report():\n    return program.check()\n").report()
    [fix] = finding.fixes
    assert fix.edits[0].text in (f"{name}(", "")
    assert f"{name}(..., 2)" in finding.help[0]


@pytest.mark.parametrize(
    ("start", "helps"),
    [
        (
            "import hfdsl as hf\n",
            [
                ("repeat what is wired to 'rollout': hf.repeat(..., 2)",),
                ("take 8 rows", "hf.fill(..., 9), which starts over from the first row"),
                ("pass on a fixed number of rows: hf.fill(..., 8)",),
            ],
        ),
        ("try:\n    import hfdsl as hf\nfinally:\n    pass\n", [(), ("take 8 rows",), ()]),
    ],
)
def test_a_function_is_written_where_the_module_imports_it_at_its_top(start: str, helps: object, load: Any) -> None:
    text = HEAD.replace("import hfdsl as hf\n", start) + (
        "class Sure(hf.Batch):\n    keep: hf.bool_[B]\n\n\n"
        "@hf.dataflow\ndef program(prompts: Prompts, sure: Sure, actor: Actor):\n"
        "    scores = actor.score(actor.generate(hf.repeat(prompts, 2)).probs)\n"
        "    actor.update(actor.generate(prompts), scores.reward)\n"
        "    first = actor.generate(hf.take(prompts, 9))\n"
        "    kept = hf.filter(prompts, sure.keep)\n"
        "    return first, [actor.generate(part) for part in hf.minibatches(kept, 2)]\n"
    )
    module = load(text)
    report = module.program.check(dims={module.B: 8})
    assert report.codes == ("HF212", "HF321", "HF321")
    assert [finding.help for finding in report] == helps


def test_a_number_of_rows_that_comes_from_elsewhere_is_not_edited(load: Any) -> None:
    text = HEAD + (
        "NUMBER = 9\n\n\n@hf.dataflow\ndef program(prompts: Prompts):\n"
        "    return hf.take(prompts, NUMBER), hf.take(prompts, rows=9)\n"
    )
    module = load(text)
    first, second = module.program.check(dims={module.B: 8})
    assert first.help == ("hf.fill(..., 9), which starts over from the first row",)
    assert (second.help, second.notes) == ((), ("take at most 8, or hf.fill(x, 9) which starts over from the first",))


SYNCED = """

class Trainer(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


class Engine(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, list[float]]) -> None: ...


@hf.dataflow
def program(trainer: Trainer, one: Engine, two: Engine):
    hf.sync({roles})
"""


@pytest.mark.parametrize(
    ("roles", "titles"),
    [("one, trainer", ["write hf.sync(trainer, one)"]), ("one, two, trainer", []), ("*(one, trainer)", [])],
)
def test_a_sync_of_two_roles_is_turned_round(roles: str, titles: list[str], load: Any) -> None:
    report = load(HEAD + SYNCED.format(roles=roles)).program.check()
    assert set(report.codes) == {"HF707"}
    assert [fix.title for finding in report for fix in finding.fixes] == titles


PLACED = """@hf.dataflow
def program(prompts: Prompts, actor: Actor):
    return actor.generate(prompts)


SIZES = {{B: 10, P: 4}}
pool = hf.ResourcePool([4], name="pool")
deployment = hf.Deployment({place})
experiment = hf.Experiment(program, deployment, dims={dims})


def report():
    from hfdsl.check.run import check

    return check(program.body, deployment, experiment.dims, call_site=experiment.span)
"""

PLACES = {
    "a size in the experiment": ("actor=hf.place(Actor, pool=pool)", "{B: 10}", ["set B to 8", "set B to 12"]),
    "a size in a variable": ("actor=hf.place(Actor, pool=pool)", "SIZES", ["set B to 8", "set B to 12"]),
    "a size that is computed": ("actor=hf.place(Actor, pool=pool)", "{B: 5 + 5}", []),
    "a dict of several": ("actor=hf.place(Actor, pool=pool)", "{**SIZES}", []),
    "an axis that is written": (
        "actor=hf.place(Actor, pool=pool, mesh=hf.Mesh(tp=2, dp=4))",
        "{B: 8}",
        ["set dp to 2"],
    ),
    "an axis that is not": ("actor=hf.place(Actor, pool=pool, mesh=hf.Mesh(tp=2))", "{B: 8}", ["set dp to 2"]),
    "an axis whose size upsets the rows": ("actor=hf.place(Actor, pool=pool, mesh=hf.Mesh(tp=2))", "{B: 9}", []),
    "a role of another name": ("acter=hf.place(Actor, pool=pool)", "{B: 8}", ["replace 'acter' by 'actor'"]),
    "a name that brings another mistake": ("acter=hf.place(Actor, pool=pool)", "{B: 10}", []),
}


@pytest.mark.parametrize("case", PLACES)
def test_the_fixes_of_a_deployment(case: str, load: Any) -> None:
    place, dims, titles = PLACES[case]
    text = HEAD + PLACED.format(place=place, dims=dims)
    before = load(text).report()
    assert not before.ok
    assert [fix.title for finding in before for fix in finding.fixes] == titles
    for finding in before:
        for fix in finding.fixes:
            mends(load, text, finding, fix, before)


def test_a_mesh_that_a_function_gives_to_several_roles_is_not_edited(load: Any) -> None:
    text = HEAD + (
        "def placed(pool):\n    return hf.place(Actor, pool=pool, mesh=hf.Mesh(tp=2))\n\n\n"
        "@hf.dataflow\ndef program(prompts: Prompts, one: Actor, two: Actor):\n"
        "    return one.generate(prompts), two.generate(prompts)\n\n\n"
        "def report():\n    pools = hf.ResourcePool([4], name='a'), hf.ResourcePool([2], name='b')\n"
        "    return program.check(hf.Deployment(one=placed(pools[0]), two=placed(pools[1])), dims={B: 8})\n"
    )
    [finding] = load(text).report()
    assert (finding.code, finding.fixes) == ("HF501", ())
    assert finding.help[0].startswith("set dp to 2")


def test_a_file_that_changed_since_it_was_imported_is_not_trusted(load: Any) -> None:
    body = "    scores = actor.score(actor.generate(prompts).probs)\n"
    body += "    actor.update(actor.generate(hf.repeat(prompts, 2)), scores.reward)\n"
    text = HEAD + f"@hf.dataflow\ndef program(prompts: Prompts, actor: Actor):\n{body}\n"
    module = load(text)
    for changed in ("", "x = 1\n", text.replace("hf.repeat(prompts, 2)", "prompts"), "é" * len(text)):
        file = str(module.__file__)
        linecache.cache[file] = (len(changed), None, changed.splitlines(keepends=True), file)
        report = module.program.check()
        assert (report.codes, [finding.fixes for finding in report]) == (("HF212",), [()])


def test_a_dataflow_under_another_decorator_is_not_rewritten(load: Any) -> None:
    text = HEAD + (
        "import functools\n\n\ndef twice(body):\n    @functools.wraps(body)\n    def both(**arguments):\n"
        "        return body(**arguments), body(**arguments)\n\n    return both\n\n\n"
        "@hf.dataflow\n@twice\ndef program(prompts: Prompts, actor: Actor):\n    return actor.generat(prompts)\n"
    )
    [finding] = load(text).program.check()
    assert (finding.code, finding.fixes) == ("HF202", ())


def test_a_dataflow_within_a_function_keeps_what_it_closes_over(load: Any) -> None:
    text = HEAD + (
        "def make(times):\n    @hf.dataflow\n    def program(prompts: Prompts, actor: Actor):\n"
        "        return actor.generat(hf.repeat(prompts, times))\n\n    return program\n\n\n"
        "def report():\n    return make(3).check()\n"
    )
    before = load(text).report()
    [fix] = before.findings[0].fixes
    mends(load, text, before.findings[0], fix, before)


def test_a_dataflow_without_a_file_has_no_fixes() -> None:
    names: dict[str, Any] = {}
    text = HEAD + "@hf.dataflow\ndef program(prompts: Prompts, actor: Actor):\n"
    text += "    return actor.generat(prompts), hf.take(prompts, 9)\n"
    linecache.checkcache()
    exec(compile(text, "<nowhere>", "exec"), names)  # noqa: S102  # as in a shell
    report = names["program"].check(dims={names["B"]: 8})
    assert report.codes == ("HF202", "HF321")
    assert [(finding.fixes, finding.help) for finding in report] == [((), ())] * 2
    assert report.findings[0].notes == ("did you mean 'generate'?",)
