"""What changing from training to generation on the same GPUs moves and keeps, by schedule and by formula.

``python -m benchmarks.resharding`` compiles the schedule of every mesh of up to 64 ranks, with every smaller layout for
generation, for the three engines of section 5 of the HybridFlow paper (EuroSys 2025), and holds its bytes against the
formulas there, for ``p`` stages, ``t`` slices and ``d`` replicas of a model of ``M`` bytes:

| | DeepSpeed-Chat | HybridFlow-V | HybridFlow |
|---|---|---|---|
| received | (tpd - 1) / tpd M | (tp - 1) / tp M | (tp - t_g p_g) / (t_g p_g tp) M |
| peak | M | M | M / (t_g p_g) |
| redundant | M / tpd | M / tp | 0 |

It then proves the sync of a model of 70B on 1,024 ranks, and prints the CPU time.

``python -m benchmarks.resharding host`` measures what syncs cost their hosts (``benchmarks.host_costs``).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from time import process_time

from hfdsl.plan.resharding import compile_schedule
from hfdsl.protocols.layouts import Generation, Layout, Parameter, Replicas, Shards, Slices, Stages
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import alike
from hfdsl.protocols.tilings import tiles
from hfdsl.rl.workers import GenerationConfig, SamplerConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.layouts import model_layout, state_parameters

LLAMA_70B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
SHOWN = (Mesh(tp=4, gen_tp=2), Mesh(pp=2, dp=2, tp=4, gen_pp=1, gen_tp=2), Mesh(pp=2, dp=4, tp=8, gen_pp=1, gen_tp=2))


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of the rank with most of them, as fractions of the model."""

    received: Fraction
    peak: Fraction
    redundant: Fraction

    def __str__(self) -> str:
        return f"{self.received!s:>8} {self.peak!s:>8} {self.redundant!s:>9}"


def meshes(most: int) -> Iterator[Mesh]:
    """Every mesh of up to ``most`` ranks, with every smaller layout for generation."""
    for pp in range(1, most + 1):
        for dp in range(1, most // pp + 1):
            for tp in range(1, most // (pp * dp) + 1):
                for gen_pp in (size for size in range(1, pp + 1) if pp % size == 0):
                    for gen_tp in (size for size in range(1, tp + 1) if tp % size == 0):
                        yield Mesh(pp=pp, dp=dp, tp=tp, gen_pp=gen_pp, gen_tp=gen_tp)


def formulas(mesh: Mesh) -> dict[str, Cost]:
    """The table of the paper."""
    tp, ranks, generation = mesh.tp * mesh.pp, mesh.world_size, mesh.gen_tp_size * mesh.gen_pp_size
    return {
        "DeepSpeed-Chat": Cost(Fraction(ranks - 1, ranks), Fraction(1), Fraction(1, ranks)),
        "HybridFlow-V": Cost(Fraction(tp - 1, tp), Fraction(1), Fraction(1, tp)),
        "HybridFlow": Cost(Fraction(tp - generation, generation * tp), Fraction(1, generation), Fraction(0)),
    }


def schedules(mesh: Mesh) -> dict[str, Cost]:
    """The same from compiled schedules: each engine is a layout for training and one for generation.

    DeepSpeed-Chat trains shards over all ranks (ZeRO-3) and HybridFlow-V slices over stages and ranks; both gather all
    of the model and keep their parts beside it. HybridFlow makes its parts a part of the larger ones.
    """
    parallel = Stages(mesh.pp).then(Slices(0))
    whole = _whole(Mesh(pp=mesh.pp, dp=mesh.dp, tp=mesh.tp))
    return {**whole, "HybridFlow": _cost(mesh, parallel, Generation(parallel), in_place=True)}


@cache
def _whole(mesh: Mesh) -> dict[str, Cost]:
    """Engines that generate with all of the model on every rank, whatever the layout for generation."""
    return {
        "DeepSpeed-Chat": _cost(mesh, Shards(("pp", "dp", "tp")), Replicas(), in_place=False),
        "HybridFlow-V": _cost(mesh, Stages(mesh.pp).then(Slices(0)), Replicas(), in_place=False),
    }


def _cost(mesh: Mesh, source: Layout, target: Layout, *, in_place: bool) -> Cost:
    parameters = [Parameter(f"layers.{i}.weight", (mesh.world_size,)) for i in range(mesh.pp)]
    same = {rank: rank for rank in range(mesh.world_size)}
    schedule = compile_schedule(parameters, source, mesh, target, mesh, same, in_place=in_place)
    size = sum(parameter.bytes for parameter in parameters)
    return Cost(
        received=Fraction(max(schedule.received), size),
        peak=Fraction(max(schedule.needed), size),
        redundant=Fraction(max(schedule.redundant), size),
    )


def different(most: int) -> tuple[int, list[Mesh]]:
    """How many meshes there are, and those of which a schedule has other bytes than the formulas."""
    every = list(meshes(most))
    return len(every), [mesh for mesh in every if schedules(mesh) != formulas(mesh)]


def proof_seconds() -> float:
    """The CPU time of the proof that 70B, sliced over 8 ranks and sharded over 128, reaches engines of 4 ranks each."""
    config = SamplerConfig(ModelConfig(config=LLAMA_70B, dtype="bfloat16"), GenerationConfig(max_tokens=1))
    slices = model_layout(config.model, 8), model_layout(config.model, 4)
    if slices[0] is None or slices[1] is None:
        raise ValueError("the layout of the model is not known")
    sides = (slices[0].then(Shards("dp")), Mesh(dp=128, tp=8)), (slices[1], Mesh(dp=256, tp=4))
    start = process_time()
    groups = alike(state_parameters(config)["policy"], *sides[0], *sides[1])
    if not all(tiles(layout, group[0], mesh) for group in groups for layout, mesh in sides):
        raise ValueError("a layout does not tile a parameter")
    return process_time() - start


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", default="bytes", choices=["bytes", "host"])
    parser.add_argument("--ranks", type=int, default=64, help="bytes: the ranks of the largest mesh")
    parser.add_argument("--times", type=int, default=40, help="host: the calls of each row")
    arguments = parser.parse_args()
    if arguments.what == "host":
        from benchmarks import host_costs  # imports torch

        host_costs.main(arguments.times)
        return
    most = arguments.ranks
    print(f"{'of the model, a rank at most':55} received     peak redundant   by formula")
    for mesh in SHOWN:
        by_schedule, by_formula = schedules(mesh), formulas(mesh)
        for engine, cost in by_schedule.items():
            print(f"{mesh!s:40} {engine:14} {cost}   {by_formula[engine]}")
    count, wrong = different(most)
    print(f"\n{count} meshes of up to {most} ranks: {count - len(wrong)} equal to the formulas, {len(wrong)} not")
    print(f"proof of 70B on 1,024 ranks: {min(proof_seconds() for _ in range(5)) * 1e3:.0f} ms of CPU time")


if __name__ == "__main__":
    main()
