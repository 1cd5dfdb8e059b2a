"""Rules of rewards: the functions and data sets that they name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hfdsl.check.findings import Finding
from hfdsl.check.rules.learning.equal_scores import message
from hfdsl.rl.data.sources import ReasoningGym
from hfdsl.rl.data.tokenizers import Characters
from hfdsl.rl.training.preflight.gym import dataset_names
from hfdsl.rl.training.preflight.names import NameProblem, problem_in_sources, problem_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.values import FieldReference
from hfdsl.rl.workers.config import JudgeConfig, RewardConfig, VerifierConfig
from hfdsl.rl.workers.reward import equal_scores
from hfdsl.types.similar_names import closest, nearest


def rules_are_there(subject: Subject) -> Iterator[Finding]:
    """The rule of a verifier exists."""
    for field, verifier in subject.parts(VerifierConfig):
        yield from _scorer(subject, verifier, field)
        names = dataset_names() if verifier.dataset is not None else frozenset[str]()
        if names and verifier.dataset not in names:
            candidate = nearest(str(verifier.dataset), sorted(names))
            message = (
                f"reasoning-gym has no data set '{verifier.dataset}'; {closest(str(verifier.dataset), sorted(names))}"
            )
            changes = (SetField(f"{field}.dataset", candidate),) if candidate else ()
            yield subject.finding("HF812", message, f"{field}.dataset", changes=changes)
        if isinstance(verifier.function, str):
            yield from _function(subject, verifier.function, f"{field}.function", 2, "score(response, task)")
        yield from _decoder(subject, verifier.tokenizer, f"{field}.tokenizer")
    for field, judge in subject.parts(JudgeConfig):
        yield from _decoder(subject, judge.tokenizer, f"{field}.tokenizer")


def _scorer(subject: Subject, verifier: VerifierConfig, field: str) -> Iterator[Finding]:
    """The scorer of a data set gets the tasks of that data set."""
    if verifier.dataset is None:
        return
    for table, field_of_source, source in _scored_sources(subject, field.partition(".")[0]):
        names = {verifier.dataset, source.name}
        if len(names) == 2 and names <= dataset_names() - {"composite"}:
            yield subject.finding(
                "HF717",
                f"'{field}' scores the tasks of '{verifier.dataset}', and the prompts{table} are of '{source.name}'",
                f"{field}.dataset",
                related={f"{field_of_source}.name": "the prompts"},
                changes=(SetField(f"{field}.dataset", source.name),),
            )
            return


def _scored_sources(subject: Subject, role: str) -> Iterator[tuple[str, str, ReasoningGym]]:
    """The sources of reasoning-gym whose tasks a role scores: those of the dataflows that it has a part in."""
    evaluation = subject.config.evaluation
    sources = [("", "", "data.source", subject.config.data.source)]
    if evaluation is not None:
        sources.append(("evaluation", " of the evaluation", "evaluation.source", evaluation.source))
    for table, words, field, source in sources:
        if isinstance(source, ReasoningGym) and table in subject.graphs and role in subject.graphs[table].roles:
            yield words, field, source


def reward_models_have_heads(subject: Subject) -> Iterator[Finding]:
    """HF967: the files of a reward model, which learns nothing in this run, have its head."""
    for field, reward in subject.parts(RewardConfig):
        why = equal_scores(reward)
        if why is not None:
            yield subject.finding(
                "HF967",
                message(field, why),
                f"{field}.model",
                notes=("a dataflow with a RewardLearner trains one, and 'hfdsl export' saves it with its head",),
            )


def rules_are_in_the_sources(subject: Subject) -> Iterator[Finding]:
    """The function of a verifier is where its configuration says, as far as its file comes with the configuration."""
    for field, verifier in subject.parts(VerifierConfig):
        place = f"{field}.function"
        if isinstance(verifier.function, str):
            folder = Path(subject.label(place).span.file).parent
            problem = problem_in_sources(verifier.function, 2, folder)
            yield from _reported(subject, problem, place, "score(response, task)")


def alphabets_agree(subject: Subject) -> Iterator[Finding]:
    """A verifier reads the letters that the model wrote."""
    writer = subject.config.data.tokenizer
    for field, verifier in subject.parts(VerifierConfig):
        reader = verifier.tokenizer
        if isinstance(writer, Characters) and isinstance(reader, Characters) and reader.alphabet != writer.alphabet:
            yield subject.finding(
                "HF904",
                f"'{field}' reads tokens with another alphabet than the data has: {reader.alphabet!r}",
                f"{field}.tokenizer",
                related={"data.tokenizer": repr(writer.alphabet)},
                changes=(SetField(f"{field}.tokenizer", FieldReference("$data.tokenizer")),),
            )


def _decoder(subject: Subject, tokenizer: object, field: str) -> Iterator[Finding]:
    if not isinstance(tokenizer, str):
        return
    if ":" in tokenizer:
        yield from _function(subject, tokenizer, field, 1, "decode(tokens)")
    elif not Path(tokenizer).is_dir():
        yield subject.finding("HF904", f"there is no tokenizer folder '{tokenizer}'", field)


def _function(subject: Subject, text: str, field: str, arguments: int, form: str) -> Iterator[Finding]:
    yield from _reported(subject, problem_of(text, arguments), field, form)


def _reported(subject: Subject, problem: NameProblem | None, field: str, form: str) -> Iterator[Finding]:
    if problem is not None:
        changes = (SetField(field, problem.near),) if problem.near else ()
        yield subject.finding("HF812", problem.message, field, notes=(f"it is called as {form}",), changes=changes)
