"""Watches another process's anonymous memory from outside: ``python resident_memory.py PID``.

A line on its input begins a watch, the next line ends it; it answers the first with the memory at that time and the
second with the peak, in KiB.
"""

from __future__ import annotations

import re
import select
import sys
from pathlib import Path


def anonymous(pid: int) -> int:
    """KiB of anonymous memory that a process holds."""
    match = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) if match else 0


def watch(pid: int) -> None:
    """Answer until the input ends."""
    while sys.stdin.readline():
        peak = anonymous(pid)
        print(peak, flush=True)
        while not select.select([sys.stdin], [], [], 0.002)[0]:
            peak = max(peak, anonymous(pid))
        sys.stdin.readline()
        print(max(peak, anonymous(pid)), flush=True)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
