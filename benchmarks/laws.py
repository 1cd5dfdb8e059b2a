"""How long the laws of each predefined protocol take at the default budget: ``python benchmarks/laws.py``."""

from __future__ import annotations

import time

import torch  # before the clock runs

from hfdsl.protocols import PREDEFINED
from hfdsl.testing import check_laws


def main() -> None:
    torch.set_num_threads(1)
    check_laws("DP_PROTO", max_examples=5)  # what is loaded and computed once
    for name in PREDEFINED:
        start, busy = time.perf_counter(), time.process_time()
        check_laws(name)
        print(
            f"{name:<22} {time.perf_counter() - start:5.2f} s, of which {time.process_time() - busy:5.2f} s computing"
        )


if __name__ == "__main__":
    main()
