"""A mesh where a list of meshes is taken."""

import hfdsl as hf
from hfdsl.testing import check_laws

# good: check_laws("DP_PROTO", meshes=[hf.Mesh(dp=2)])
check_laws("DP_PROTO", meshes=hf.Mesh(dp=2))  # type: ignore[arg-type]  # <- bad
