"""A plot with two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 290, 30, 60
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8a5a9e", "#c77d0a")


@dataclass(frozen=True, slots=True)
class Line:
    """Measured points, both coordinates above 0."""

    label: str
    points: Sequence[tuple[float, float]]

    @property
    def slope(self) -> float:
        """Of the least-squares line through the logarithms; NaN for fewer than two points. 1 is linear growth."""
        logs = [(math.log(x), math.log(y)) for x, y in self.points]
        if len(logs) < 2:
            return float("nan")
        middle_x, middle_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
        spread = sum((x - middle_x) ** 2 for x, _ in logs)
        return round(float(sum((x - middle_x) * (y - middle_y) for x, y in logs) / spread), 3)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis over whole decades, from pixel `start` to pixel `end`."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def write_plot(path: Path, lines: Sequence[Line], caption: str) -> None:
    """Writes the plot; rows on the x axis."""
    across = _Axis.over([x for line in lines for x, _ in line.points], LEFT, WIDTH - RIGHT)
    up = _Axis.over([y for line in lines for _, y in line.points], HEIGHT - BOTTOM, TOP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    parts = [head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *_grid(across, up)]
    for number, line in enumerate(lines):
        parts += _line(line, COLOURS[number % len(COLOURS)], TOP + 20 + 44 * number, across, up)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 28}" text-anchor="middle">rows</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}" font-size="10" fill="#555">{escape(caption)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _grid(across: _Axis, up: _Axis) -> Iterator[str]:
    for value in across.decades():
        x = across(value)
        yield f'<line x1="{x}" y1="{up.start}" x2="{x}" y2="{up.end}" stroke="#ddd"/>'
        yield f'<text x="{x}" y="{up.start + 16}" text-anchor="middle">{value:,.0f}</text>'
    for value in up.decades():
        y = up(value)
        yield f'<line x1="{across.start}" y1="{y}" x2="{across.end}" y2="{y}" stroke="#ddd"/>'
        yield f'<text x="{across.start - 6}" y="{y + 4}" text-anchor="end">{value:,g}</text>'


def _line(line: Line, colour: str, legend: float, across: _Axis, up: _Axis) -> Iterator[str]:
    pixels = [(across(x), up(y)) for x, y in line.points]
    joined = " ".join(f"{x},{y}" for x, y in pixels)
    yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in pixels:
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>'
    left = WIDTH - RIGHT + 24
    yield f'<line x1="{left}" y1="{legend - 4}" x2="{left + 22}" y2="{legend - 4}" stroke="{colour}" stroke-width="2"/>'
    yield f'<text x="{left + 30}" y="{legend}">{escape(line.label)}</text>'
    yield f'<text x="{left + 30}" y="{legend + 16}" fill="#555">slope {line.slope:.2f}</text>'
