"""Generation groups of 3 within training groups of 8."""

import hfdsl as hf

# good: mesh = hf.Mesh(dp=2, tp=8, gen_tp=4)
mesh = hf.Mesh(dp=2, tp=8, gen_tp=3)  # <- bad
