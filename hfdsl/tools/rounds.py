"""A run whose steps are rounds of sampling and an update: both plans, one drawing of them, and whole steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter

from hfdsl.deploy.experiment import Experiment
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.experiments import compiled
from hfdsl.rl.training.rounds import Rounds, StepResult, check_rounds, kept_rows
from hfdsl.rl.training.run_config import UpdateConfig
from hfdsl.runtime.running import Running
from hfdsl.tools.scene import Link, Scene, results_by_box, scene


@dataclass(frozen=True, slots=True)
class RoundsAndUpdate:
    """Steps of one dataflow until they have kept the rows that an update asks for, and then that update."""

    loaded: Loaded
    sampling: Experiment
    updating: Experiment
    update_config: UpdateConfig

    def __str__(self) -> str:
        sampling, updating = (part.dataflow.body.__name__ for part in (self.sampling, self.updating))
        update = self.update_config
        short = "start over from the first" if update.short == "repeat" else "end the run"
        return (
            f"a step is rounds of '{sampling}', at most {update.rounds}, until they keep {update.rows} rows "
            f"(fewer {short}), and then '{updating}' on the first {update.rows} of these"
        )

    def plans(self) -> tuple[CompiledPlan, CompiledPlan]:
        """The plan of a round, and that of the update.

        Raises:
            CheckError: where a check finds errors.
            ConfigError: HF901 if the two cannot be combined.
        """
        sampling, updating = compiled(self.sampling, self.loaded), compiled(self.updating, self.loaded, "update")
        with self.loaded.located():
            check_rounds(sampling, updating, self.update_config)
        return sampling, updating

    def as_dict(self) -> dict[str, object]:
        """The rounds as JSON."""
        return {"rows": self.update_config.rows, "most": self.update_config.rounds, "short": self.update_config.short}

    def scene(self, sampling: CompiledPlan, updating: CompiledPlan) -> Scene:
        """The update after a round, from what the rounds have kept."""
        first, then = scene(sampling), scene(updating)
        kept_ref = kept_rows(sampling, updating)
        source = next(key for key, ref in results_by_box(sampling).items() if ref == kept_ref)
        boxes = tuple(replace(box, key=f"u{box.key}", level=first.levels + box.level) for box in then.boxes)
        links = tuple(replace(link, source=f"u{link.source}", target=f"u{link.target}") for link in then.links)
        filled = Link(source, next(box.key for box in boxes if box.kind == "input"), (), *self._filled())
        lanes = {lane.key: lane for lane in (*first.lanes, *then.lanes)}
        return Scene(
            title=f"{first.title}, then {then.title}",
            subtitle=f"{first.subtitle}, then {then.subtitle}",
            lanes=tuple(lanes.values()),
            boxes=(*first.boxes, *boxes),
            links=(*first.links, filled, *links),
            levels=first.levels + then.levels,
        )

    def _filled(self) -> tuple[str, str]:
        return f"{self.update_config.rows} rows", f"of {self.update_config.rounds} rounds at most"

    def stepping(self, updating: CompiledPlan) -> Callable[[Running], Iterator[tuple[StepResult, float]]]:
        """A function that runs steps of launched rounds, as ``hfdsl train`` does, and yields each with its seconds.

        Raises:
            SizeError: HF321 where rounds keep too little.
            HfError: what data, models, roles and metrics raise.
        """
        from hfdsl.rl.training.loop import prepare

        feed, start = prepare(self.loaded).feed, self.loaded.cursor()

        def steps(running: Running) -> Iterator[tuple[StepResult, float]]:
            filling, cursor = Rounds(feed, running, running.also(updating), self.update_config), start
            for number in count():
                begin = perf_counter()
                step_taken = filling.step(cursor, number, lambda running: nullcontext())
                cursor = step_taken.cursor
                yield step_taken, perf_counter() - begin

        return steps
