"""The same, mended: A coordinate beyond the mesh."""

import hfdsl as hf

last = hf.Mesh(dp=2, tp=4).rank(dp=1)
