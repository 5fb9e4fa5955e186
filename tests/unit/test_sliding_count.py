"""What was true of the last steps, counted as they come and go."""

from __future__ import annotations

import random
from collections import deque

from gradledger_monitor.rules.sliding_count import push


def test_the_count_is_that_of_the_answers_that_are_held() -> None:
    chance, last, true = random.Random(5), deque[bool](maxlen=7), 0
    for number in range(200):
        true += push(last, chance.random() < 0.4)
        assert true == last.count(True)
        assert len(last) == min(number + 1, 7)
