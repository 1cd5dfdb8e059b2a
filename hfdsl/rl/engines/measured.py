"""The choice of an engine from measurements: the cases in docs/engines.md, and the case nearest to a run.

Three numbers decide how fast an engine samples: the model's parameters, the rows of a call, and the tokens of a row.
vLLM gains on captured steps with more parameters and longer rows, and loses with more rows. Some cases, with their
squared distances to a run of 2 billion parameters, 256 rows and 512 tokens::

    parameters   rows x tokens    captured    vllm     ln(2/p)^2 + ln(256/r)^2 + ln(512/t)^2
       0.52B     512 x 1,024        53,148   31,594    1.81      + 0.48        + 0.48        = 2.77
       1.26B      64 x 1,024        11,748   19,296    0.21      + 1.92        + 0.48        = 2.62
       1.26B     256 x 1,024        23,783   33,451    0.21      + 0            + 0.48       = 0.69  nearest: vLLM
       3.17B     512 x   256        25,609   29,878    0.21      + 0.48        + 0.48        = 1.17

Distances are between logarithms, since what matters is the ratio of two sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """One row of the table, on one H200 in bfloat16 with rows of one length: sizes, and tokens/s of both engines."""

    parameters: int
    rows: int
    tokens: int
    captured: int
    vllm: int

    @property
    def is_won_by_vllm(self) -> bool:
        """Whether vLLM sampled faster."""
        return self.vllm > self.captured

    def __str__(self) -> str:
        """The case for a message.

        >>> str(MEASURED[8])
        '1.26B parameters, 64 rows of 256 tokens: 21,848 tokens/s with vLLM, 14,809 with captured steps'
        """
        sizes = f"{self.parameters / 10**9:.2f}B parameters, {self.rows} rows of {self.tokens:,} tokens"
        return f"{sizes}: {self.vllm:,} tokens/s with vLLM, {self.captured:,} with captured steps"


MEASURED: Final = (
    MeasuredCase(140_000_000, 64, 256, captured=62_586, vllm=21_681),
    MeasuredCase(140_000_000, 512, 256, captured=209_220, vllm=39_215),
    MeasuredCase(160_000_000, 64, 1024, captured=41_422, vllm=20_659),
    MeasuredCase(160_000_000, 512, 1024, captured=127_103, vllm=29_678),
    MeasuredCase(500_000_000, 64, 256, captured=26_140, vllm=20_552),
    MeasuredCase(500_000_000, 512, 256, captured=82_985, vllm=39_491),
    MeasuredCase(520_000_000, 64, 1024, captured=19_081, vllm=17_972),
    MeasuredCase(520_000_000, 512, 1024, captured=53_148, vllm=31_594),
    MeasuredCase(1_260_000_000, 64, 256, captured=14_809, vllm=21_848),
    MeasuredCase(1_260_000_000, 512, 256, captured=44_022, vllm=42_544),
    MeasuredCase(1_260_000_000, 64, 1024, captured=11_748, vllm=19_296),
    MeasuredCase(1_260_000_000, 256, 1024, captured=23_783, vllm=33_451),
    MeasuredCase(1_260_000_000, 512, 1024, captured=28_847, vllm=28_752),
    MeasuredCase(3_170_000_000, 64, 256, captured=9_989, vllm=15_952),
    MeasuredCase(3_170_000_000, 512, 256, captured=25_609, vllm=29_878),
    MeasuredCase(3_170_000_000, 64, 1024, captured=7_715, vllm=14_126),
    MeasuredCase(3_170_000_000, 256, 1024, captured=15_010, vllm=20_437),
    MeasuredCase(3_170_000_000, 512, 1024, captured=16_926, vllm=21_205),
)
"""The cases in which both engines were measured; benchmarks/training/README.md says how."""


def nearest_case(parameters: int, rows: int, tokens: int) -> MeasuredCase:
    """The measured case nearest to these sizes, each at least 1.

    >>> nearest_case(7_000_000_000, rows=128, tokens=2048).is_won_by_vllm
    True
    >>> nearest_case(103_000_000, rows=512, tokens=240)
    MeasuredCase(parameters=140000000, rows=512, tokens=256, captured=209220, vllm=39215)
    """
    return min(
        MEASURED,
        key=lambda case: (
            log(parameters / case.parameters) ** 2 + log(rows / case.rows) ** 2 + log(tokens / case.tokens) ** 2
        ),
    )
