"""Commands of benchmarks.dataplane, one after another in this process and one Ray cluster.

The last line is what each printed: ``python -m tests.benchmarks.in_one_cluster '{"soak": ["soak", "--json"]}'``.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import traceback
from contextlib import redirect_stdout

from benchmarks.dataplane import measure
from tests import fork_server


def printed(module: str, options: list[str]) -> dict[str, str]:
    """What a command prints, and the error that it ends with, if any."""
    out, error = io.StringIO(), ""
    try:
        with redirect_stdout(out):
            importlib.import_module(f"benchmarks.dataplane.{module}").main(options)
    except SystemExit as end:
        error = f"exit status {end.code}" if end.code else ""
    except Exception:  # noqa: BLE001  # the others are to run too
        error = traceback.format_exc()
    return {"out": out.getvalue(), "error": error}


if __name__ == "__main__":
    os.environ |= measure.VARIABLES  # before the fork server imports Ray, which reads them then
    with fork_server.install(), measure.cluster(100):
        outputs = {name: printed(module, options) for name, (module, *options) in json.loads(sys.argv[1]).items()}
    print(json.dumps(outputs))
