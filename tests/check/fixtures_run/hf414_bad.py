"""Generation groups of 3 within training groups of 8."""

import hfdsl as hf

mesh = hf.Mesh(dp=2, tp=8, gen_tp=3)  # <-
