"""vLLM on a CPU as on a GPU, whose layers compute with their weights as they are; and as it is, without saying so."""

from __future__ import annotations

from pathlib import Path

from hfdsl.rl.engines.interface import EngineStart
from hfdsl.rl.engines.vllm_engine import VllmEngine


class UnpackedEngine(VllmEngine):
    """Without the kernels of a CPU, each of which reads a copy of a weight in a layout of its own."""

    def __init__(self, start: EngineStart, folder: Path) -> None:
        from vllm import _custom_ops  # pyright: ignore[reportMissingImports]  # optional
        from vllm.model_executor.layers import utils  # pyright: ignore[reportMissingImports]  # optional

        _custom_ops._supports_onednn = False
        utils.check_cpu_sgl_kernel = lambda *_: False
        super().__init__(start, folder)
        self.direct_writer = self.writer

    def reload(self, on: bool) -> None:
        """Load by ``reload_weights`` from now on, or write in place."""
        self.writer = None if on else self.direct_writer


class KeptEngine(VllmEngine):
    """With these kernels, and with the weights that they do not read, so that all shapes are right."""

    def __init__(self, start: EngineStart, folder: Path) -> None:
        from vllm.model_executor.layers import utils  # pyright: ignore[reportMissingImports]  # optional

        dispatch = utils.dispatch_cpu_unquantized_gemm
        utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: dispatch(layer, remove_weight=False)
        super().__init__(start, folder)
