"""A coordinate beyond the mesh."""

import hfdsl as hf

# good: last = hf.Mesh(dp=2, tp=4).rank(dp=1)
last = hf.Mesh(dp=2, tp=4).rank(dp=2)  # <- bad
