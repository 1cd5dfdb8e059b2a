"""The sizes of models whose weights the benchmarks move and digest."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.protocols.layouts import Parameter


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a Llama without grouped heads."""

    hidden: int
    inner: int
    layers: int
    vocabulary: int = 32000

    def parameters(self) -> list[Parameter]:
        """Its weights, in bfloat16."""
        hidden, inner, words = self.hidden, self.inner, self.vocabulary
        shapes: dict[str, tuple[int, ...]] = {"embed": (words, hidden), "norm": (hidden,), "head": (words, hidden)}
        for layer in range(self.layers):
            shapes |= {f"{layer}.{name}": (hidden, hidden) for name in "qkvo"}
            shapes |= {f"{layer}.gate": (inner, hidden), f"{layer}.up": (inner, hidden)}
            shapes |= {f"{layer}.down": (hidden, inner), f"{layer}.norm1": (hidden,), f"{layer}.norm2": (hidden,)}
        return [Parameter(name, shape, "bfloat16", contiguous=True) for name, shape in shapes.items()]

    @property
    def bytes(self) -> int:
        """The bytes of its weights."""
        return sum(parameter.bytes for parameter in self.parameters())


SIZES = {
    "empty": Size(128, 256, 1, 64),
    "small": Size(512, 1376, 4),
    "1.3B": Size(2048, 5504, 24),
    "7B": Size(4096, 11008, 32),
}
