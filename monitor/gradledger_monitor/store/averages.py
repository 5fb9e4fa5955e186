"""Sums and means in SQL of any floats that were measured, extreme ones included."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import ColumnElement, and_, case, cast, func, literal
from sqlalchemy.types import Double

LARGEST, SMALLEST = 1e300, 1e-300


def summable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A float that any database can add and divide.

    Postgres raises an error where a sum overflows or a quotient underflows, and its ``avg`` even
    where the square of a value does. What is too large counts as ``LARGEST``, what is too small
    as 0; infinities and NaN stay.
    """
    infinity = literal(math.inf, Double)
    return case(
        (and_(column > LARGEST, column < infinity), LARGEST),
        (and_(column < -LARGEST, column > -infinity), -LARGEST),
        (and_(column > -SMALLEST, column < SMALLEST), 0.0),
        else_=column,
    )


def mean_of(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The mean of the steps in which a figure was measured."""
    measured = func.nullif(cast(func.count(column), Double), 0.0)
    return func.sum(summable(column)) / measured
