"""A mesh where a list of meshes is taken."""

import hfdsl as hf
from hfdsl.testing import check_laws

check_laws("DP_PROTO", meshes=hf.Mesh(dp=2))  # type: ignore[arg-type]  # <-
