"""The long runs of ``museum.courses``, cut short: right without a fault, and ill with one."""

from __future__ import annotations

import dataclasses

import pytest

from gradledger.capture.step_sampling import StepSampler
from museum.courses.architectures import HEALTHY
from museum.courses.depth import RULES, evaluated, recorded
from museum.courses.faults import ILLNESSES
from museum.courses.measure import evaluate_history
from museum.courses.settings import TASKS, draw

SHORT = 150


def test_a_number_is_one_setting_for_ever_and_numbers_cover_the_tasks() -> None:
    assert draw(3) == draw(3)
    assert {draw(seed).task for seed in range(50)} == set(TASKS)


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_is_not_alarmed(seed: int) -> None:
    assert evaluate_history(draw(seed, SHORT)).loud == {}


def test_a_healthy_run_of_which_some_steps_are_watched_is_not_alarmed() -> None:
    step_sampler = StepSampler(1e-12, first_steps=16, burst=16, longest_period=64)
    assert evaluate_history(draw(1, SHORT), step_sampler=step_sampler).loud == {}


def test_a_fault_is_named_after_its_onset() -> None:
    kind = next(kind for kind in ILLNESSES if kind.rule == "norm.spike")
    setting = dataclasses.replace(kind.setting(1), steps=SHORT)
    first_steps = evaluate_history(setting, kind.fault(100)).loud
    assert first_steps.keys() & {kind.rule, *kind.also}
    assert 100 <= min(first_steps.values()) <= 100 + kind.within


@pytest.mark.parametrize("seed", range(len(HEALTHY)))
def test_the_layers_of_a_healthy_architecture_are_not_reported(seed: int) -> None:
    findings = evaluated(recorded(seed, 35)).findings
    assert not {f.rule for f in findings} & set(RULES)
