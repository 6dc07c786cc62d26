"""How many rows of prompts go into a step beside others, on a simulated machine whose rows cost more the deeper."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ggfw.step_times import LEAST_ROWS, MANY_ROWS, TILE, WIDE_TILE, StepTimes

BUDGET = 50.0


class Machine:
    """4 others decode in 5 ms; a row costs 0.8 ms, and so much again behind 2,000 positions; noise of a few percent."""

    def __init__(self, slope: float = 1 / 2000, seed: int = 0) -> None:
        self.slope, self.speed = slope, 1.0
        self.dice = random.Random(seed)

    def ms(self, n_decode: int, n_prompt: int, depth: float) -> float:
        whole = 1.25 * n_decode + 0.8 * n_prompt * (1 + self.slope * depth) + 0.001 * depth * (n_prompt > 0)
        return whole / self.speed * self.dice.uniform(0.97, 1.06)


def read(
    times: StepTimes, machine: Machine, begin: int, end: int, at: Callable[[int], None] = lambda depth: None
) -> list[float]:
    """A prompt from ``begin`` to ``end`` beside four others; gives what its rows have added to each step, in ms."""
    added = []
    while begin < end:
        at(begin)
        n = min(times.rows(begin), end - begin)
        ms = machine.ms(4, n, begin + n / 2)
        times.observe(4, n, ms, begin + n / 2)
        if n < end - begin:
            added.append(ms - 5)
        begin += n
    return added


@pytest.fixture
def times() -> StepTimes:
    """It has seen decode rows, and a prompt that was read alone."""
    times, machine = StepTimes(BUDGET), Machine()
    for _ in range(10):
        times.observe(4, 0, machine.ms(4, 0, 0))
    for depth in range(0, 4000, 500):
        times.observe(0, 500, machine.ms(0, 500, depth + 250), depth + 250)
    return times


@pytest.mark.parametrize("slope", [0.0, 1 / 8000, 1 / 2000, 1 / 500])
def test_steps_keep_to_the_budget_from_the_first_row_to_the_last(times: StepTimes, slope: float) -> None:
    for seed in range(3):
        machine = Machine(slope, seed)
        read(times, machine, 0, 4000)
        added = sorted(read(times, machine, 0, 4000))
        assert 0.85 * BUDGET < added[len(added) // 2] < 1.15 * BUDGET
        assert added[int(0.99 * len(added))] < 1.4 * BUDGET


def test_a_deep_conversation_after_short_ones_costs_no_longer_step(times: StepTimes) -> None:
    machine = Machine()
    for _ in range(20):
        read(times, machine, 0, 200)
    assert max(read(times, machine, 3800, 4000)) < 1.4 * BUDGET
    for _ in range(20):
        read(times, machine, 3900, 4000)
    assert read(times, machine, 0, 1000)[-1] > 0.8 * BUDGET, "nor do short ones starve after deep ones"


@pytest.mark.parametrize("speed", [0.5, 0.9, 2.0])
def test_a_machine_that_becomes_slower_or_faster_is_followed(times: StepTimes, speed: float) -> None:
    machine = Machine()

    def change(depth: int) -> None:
        machine.speed = speed if depth > 1500 else 1.0

    added = read(times, machine, 0, 4000, change)
    late = added[-15:]
    assert all(0.7 * BUDGET < ms < 1.4 * BUDGET for ms in late)
    assert max(added) < 1.4 * BUDGET / min(speed, 1.0)


def test_what_is_unknown_or_slow_gets_on_all_the_same() -> None:
    times = StepTimes(BUDGET)
    assert times.rows() == times.rows(5000) == LEAST_ROWS
    times.observe(4, LEAST_ROWS, 4000.0, 0)
    assert times.rows() == times.rows(5000) == LEAST_ROWS
    times, sizes = StepTimes(BUDGET), []
    times.observe(4, 0, 5.0)
    for _ in range(12):
        sizes.append(times.rows())
        times.observe(4, sizes[-1], 5 + 0.01 * sizes[-1], 0)
    assert all(b <= 2 * a for a, b in zip(sizes, sizes[1:], strict=False)), "it is felt for, not leapt to"
    assert sizes[-1] > 1000
    assert all(n % (WIDE_TILE if n > MANY_ROWS else TILE) == 0 for n in sizes)
