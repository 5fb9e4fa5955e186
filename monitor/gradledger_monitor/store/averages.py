"""Sums and means in SQL that work for every float, extreme ones included."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import ColumnElement, and_, case, cast, func, literal
from sqlalchemy.types import Double

LARGEST, SMALLEST = 1e300, 1e-300


def summable(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """A float that both databases can add and divide.

    Postgres raises an error if a sum overflows or a quotient underflows, and ``avg`` raises one
    even if the square of a value does. So values beyond ``LARGEST`` count as ``LARGEST``, and
    values nearer to 0 than ``SMALLEST`` as 0. Infinities and NaN stay.
    """
    infinity = literal(math.inf, Double)
    return case(
        (and_(column > LARGEST, column < infinity), LARGEST),
        (and_(column < -LARGEST, column > -infinity), -LARGEST),
        (and_(column > -SMALLEST, column < SMALLEST), 0.0),
        else_=column,
    )


def mean_of(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """The mean over the rows that have a value; NULL if none has."""
    count = func.nullif(cast(func.count(column), Double), 0.0)
    return func.sum(summable(column)) / count
