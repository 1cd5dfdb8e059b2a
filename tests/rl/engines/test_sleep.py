"""An engine goes to sleep while another process takes memory of the same GPU; no vLLM is needed."""

from __future__ import annotations

from itertools import count

import pytest
import torch

from hfdsl.rl.engines.vllm_engine import VllmEngine


class Llm:
    """Checks its own memory at the end of ``sleep``, as vLLM does."""

    asleep, level = False, 0

    def sleep(self, level: int) -> None:
        before = torch.accelerator.get_memory_info()[0]
        self.asleep, self.level = True, level
        assert torch.accelerator.get_memory_info()[0] >= before, "Memory usage increased after sleeping."


def engine() -> VllmEngine:
    started = object.__new__(VllmEngine)
    started.sleeps, started.llm = True, Llm()
    return started


@pytest.fixture
def shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which another process takes a byte between any two measurements."""
    free = count(100, -1)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (next(free), 100))


@pytest.mark.usefixtures("shrinking")
def test_another_process_may_take_memory_meanwhile() -> None:
    with pytest.raises(AssertionError, match="increased"):
        Llm().sleep(level=1)
    for keep_weights, level in ((True, 1), (False, 2)):
        sleeper = engine()
        sleeper.sleep(keep_weights)
        assert (sleeper.llm.asleep, sleeper.llm.level) == (True, level)


@pytest.mark.usefixtures("shrinking")
def test_the_measurement_is_torchs_again_after_sleep_and_after_an_error() -> None:
    measure = torch.accelerator.get_memory_info
    engine().sleep(True)
    assert torch.accelerator.get_memory_info is measure
    broken = engine()
    broken.llm.sleep = None
    with pytest.raises(TypeError):
        broken.sleep(True)
    assert torch.accelerator.get_memory_info is measure
