"""Two things measured in turn, so that what disturbs the machine disturbs both alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Rate:
    """One measurement: how much a second, and whatever else is worth keeping."""

    per_second: float
    notes: Mapping[str, Any]


Measure = Callable[[], Rate]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rounds of two measures, `ours` over `base`."""

    ours: tuple[Rate, ...]
    base: tuple[Rate, ...]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return round(median(ours.per_second / base.per_second for ours, base in zip(self.ours, self.base, strict=True)), 4)

    @property
    def cost(self) -> float:
        """What ours costs in units of the base, where a rate is work a second: the inverse of the ratio, by rounds."""
        return round(median(base.per_second / ours.per_second for ours, base in zip(self.ours, self.base, strict=True)), 4)

    def details(self) -> dict[str, Any]:
        """Every round, as JSON values."""
        return {
            "ratio": self.ratio,
            "rounds": [
                {
                    "ratio": round(ours.per_second / base.per_second, 4),
                    "ours": {"per_second": round(ours.per_second, 1), **ours.notes},
                    "base": {"per_second": round(base.per_second, 1), **base.notes},
                }
                for ours, base in zip(self.ours, self.base, strict=True)
            ],
        }


def compare(ours: Measure, base: Measure, rounds: int) -> Comparison:
    """`rounds` rounds of both after an unmeasured warm-up; who goes first alternates too.

    Ours is warmed up twice: Java compiles while it runs, and in the first seconds that takes as much time as the searches.
    """
    ours()
    base()
    ours()
    ours_rates, base_rates = [], []
    for number in range(rounds):
        if number % 2:
            base_rates.append(base())
            ours_rates.append(ours())
        else:
            ours_rates.append(ours())
            base_rates.append(base())
    return Comparison(tuple(ours_rates), tuple(base_rates))
