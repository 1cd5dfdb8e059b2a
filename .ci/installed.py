"""What an installation without extras must do: import, check, plan, explain; ``make wheel`` runs it in each Python."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import hfdsl as hf


class B(hf.Dim):
    "Rows."


class Texts(hf.Batch):
    text: hf.Obj[str, B]


class Echo(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def answer(self, texts: Texts) -> Texts:
        return texts


@hf.dataflow
def parrot(texts: Texts, echo: Echo) -> Texts:
    return echo.answer(hf.repeat(texts, 2))


pool = hf.ResourcePool([4], use_gpu=False)
experiment = hf.Experiment(parrot, hf.Deployment(echo=hf.place(Echo, pool=pool)), dims={B: 8})
"""

COMMANDS = (
    (["check", "program.py"], 0, "no findings"),
    (["check", "program.py", "--set", "B=7"], 1, "HF310"),
    (["plan", "program.py"], 0, "echo.answer"),
    (["requires", "program.py"], 0, "a multiple of 2"),
    (["draw", "program.py"], 0, "flowchart"),
    (["explain", "HF310"], 0, "HF310"),
)


def main() -> int:
    """Run the commands in an empty folder, so that only the installed package can be imported."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(PROGRAM, "utf-8")
        for command, code, text in COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", "hfdsl", *command],
                cwd=folder,
                env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            if done.returncode != code or text not in done.stdout:
                print(f"hfdsl {' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
                return 1
    print(f"Python {platform.python_version()} on {platform.system()}: import, check, plan, draw and explain work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
