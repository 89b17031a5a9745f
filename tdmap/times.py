"""Times in formulas: dates, moments, times of day and durations as numbers in the unit of a column.

2024-06-01          beside date32[day]       ──►  19875
2024-06-01 12:00    beside timestamp[ms]     ──►  1717243200000
x < 2024-06-01 12:00 beside date32[day]      ──►  x <= 19875, as no whole number of days stands for noon
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

_NANOSECONDS = {
    "W": 7 * 86_400 * 10**9,
    "D": 86_400 * 10**9,
    "day": 86_400 * 10**9,
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
"""Of each unit, by its names in Arrow and in numpy."""

_MONTHS = {"Y": 12, "M": 1}

_TYPE = re.compile(r"(date32|date64|timestamp|time32|time64|duration)\[(day|s|ms|us|ns)(?:, tz=(.+))?\]")
_DAY = r"(?P<day>\d{4}-\d\d-\d\d)"
_CLOCK = r"(?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d)(?:\.(?P<f>\d{1,9}))?)?"
_MOMENT = re.compile(rf"{_DAY}(?:[T ]{_CLOCK}\s?(?P<zone>Z|[+-]\d\d:?\d\d)?)?")
_TIME = re.compile(_CLOCK)

MOMENT, CLOCK, SPAN = "a date", "a time of day", "a duration"

_BESIDE = {"<": ("<=", 0), "<=": ("<=", 0), ">": (">", 0), ">=": (">", 0)}
"""Of a value between two whole numbers of units: the comparison with the lower one that says the same."""


@dataclass(frozen=True)
class TimeType:
    """What the whole numbers of a column stand for.

    Args:
        name: as Arrow has it.
        family: a date, a time of day, or a duration.
        unit: nanoseconds.
        zoned: whether moments are those of a zone, so in UTC.
    """

    name: str
    family: str
    unit: int
    zoned: bool


@lru_cache(maxsize=256)
def time_type(name: str) -> TimeType | None:
    """The type of time of this name, if it is one.

    Example:
        >>> time_type("timestamp[ms, tz=UTC]")
        TimeType(name='timestamp[ms, tz=UTC]', family='a date', unit=1000000, zoned=True)
    """
    found = _TYPE.fullmatch(name)
    if found is None:
        return None
    kind, unit, zone = found.groups()
    family = SPAN if kind == "duration" else CLOCK if kind.startswith("time3") or kind == "time64" else MOMENT
    return TimeType(name, family, _NANOSECONDS[unit], zone is not None)


def is_time(value: object) -> bool:
    """Whether a value is a date, a time of day or a duration, of Python, numpy or pandas."""
    return isinstance(value, (date, time, timedelta, np.datetime64, np.timedelta64))


def beside(sign: str, value: object, kind: TimeType) -> tuple[str, int] | None:
    """The comparison of numbers of a column that says the same as that of times; None where no number can be equal.

    Args:
        sign: of a comparison.
        value: a time, or a text in the form of ISO 8601.
        kind: the type of the column, which is on the left.

    Raises:
        TypeError: the value is no time of this type; says what would be.

    Example:
        >>> beside("<", "2024-06-01 12:00", time_type("date32[day]"))
        ('<=', 19875)
    """
    number, rest = divmod(_nanoseconds(value, kind), kind.unit)
    if not rest:
        return sign, number
    known = _BESIDE.get(sign)
    return None if known is None else (known[0], number)


def text_of(number: int, kind: TimeType) -> str:
    """A number of a column as the time that it stands for.

    Example:
        >>> text_of(19875, time_type("date32[day]")), text_of(1717243200500, time_type("timestamp[ms, tz=UTC]"))
        ('2024-06-01', '2024-06-01T12:00:00.500Z')
    """
    unit = _unit_of(kind)
    if kind.family == SPAN:
        return f"{number} {unit}"
    shown = str(np.datetime_as_string(np.array(number, dtype=f"datetime64[{unit}]")))
    day, _, clock = shown.partition("T")
    if kind.family == CLOCK:
        return clock
    return day if kind.name.startswith("date") else shown + "Z" * kind.zoned


def about_text(number: float, kind: TimeType, span: float) -> str:
    """A number of a column as a time in few characters, among others that are at most `span` of its units apart.

    Example:
        >>> hours = time_type("timestamp[s]")
        >>> about_text(1717243200, hours, 86_400 * 30), about_text(1717243200, hours, 7200)
        ('2024-06-01', '2024-06-01 12:00')
        >>> about_text(5400, time_type("duration[s]"), 7200)
        '1.5 h'
    """
    if kind.family == SPAN:
        return length_text(number, kind)
    text = text_of(round(number), kind).replace("T", " ")
    wide = span * kind.unit
    kept = 0 if wide >= _NANOSECONDS["h"] else 3 if wide >= _NANOSECONDS["m"] else len(text)
    if kind.family == MOMENT:
        return text[:10] if wide >= 10 * _NANOSECONDS["D"] else text[: 16 + kept]
    return text[: 5 + kept]


def length_text(number: float, kind: TimeType) -> str:
    """So many units of a column as a length of time.

    Example:
        >>> length_text(90_000, time_type("timestamp[ms]")), length_text(0, time_type("timestamp[ms]"))
        ('1.5 min', '0 ms')
    """
    length = number * kind.unit
    for unit, name in (("D", "d"), ("h", "h"), ("m", "min"), ("s", "s"), ("ms", "ms"), ("us", "us")):
        if abs(length) >= _NANOSECONDS[unit]:
            return f"{length / _NANOSECONDS[unit]:.4g} {name}"
    return f"{length:.4g} ns" if length else f"0 {_unit_of(kind)}"


def _unit_of(kind: TimeType) -> str:
    return next(unit for unit, size in _NANOSECONDS.items() if size == kind.unit and unit not in ("day", "W"))


def _nanoseconds(value: object, kind: TimeType) -> int:
    """A value in nanoseconds, since 1970 in UTC or since midnight."""
    found = _of_text(value, kind) if isinstance(value, str) else _of_object(value)
    if found is None:
        example = {MOMENT: "'2024-06-01' or '2024-06-01T12:30:00'", CLOCK: "'12:30:00'", SPAN: "a timedelta"}
        raise TypeError(
            f"its numbers are {kind.name}, and {value!r} is not {kind.family}, such as {example[kind.family]}"
        )
    family, number, zoned = found
    if family != kind.family:
        raise TypeError(f"its numbers are {kind.name}, and {value!r} is {family}, not {kind.family}")
    if zoned is not None and zoned != kind.zoned:
        if zoned:
            raise TypeError(f"its numbers are {kind.name}, without a zone, and {value!r} has one: leave it out")
        raise TypeError(
            f"its numbers are {kind.name}, and {value!r} has no zone: say which, as in '2024-06-01T00:00+00:00' or "
            "datetime(2024, 6, 1, tzinfo=timezone.utc)"
        )
    return number


def _of_object(value: Any) -> tuple[str, int, bool | None] | None:
    """The family of a time, its nanoseconds, and whether it has a zone; None of anything else, and of NaT."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        family, (unit, count) = MOMENT if isinstance(value, np.datetime64) else SPAN, np.datetime_data(value.dtype)
        number = int(value.astype(np.int64)) * count
        if unit in _MONTHS and family == MOMENT:
            number, unit = _days(number * _MONTHS[unit]), "D"
        if np.isnat(value) or unit not in _NANOSECONDS:
            return None
        return family, number * _NANOSECONDS[unit], False if family == MOMENT else None
    if value != value:  # NaT of pandas
        return None
    if isinstance(value, datetime):
        more = getattr(value, "nanosecond", 0)  # of pandas
        plain = datetime(*value.timetuple()[:6], value.microsecond)
        offset = value.utcoffset() or timedelta()
        return MOMENT, _length(plain - datetime(1970, 1, 1) - offset) + more, value.tzinfo is not None
    if isinstance(value, date):
        return MOMENT, (value.toordinal() - date(1970, 1, 1).toordinal()) * _NANOSECONDS["D"], False
    if isinstance(value, time) and value.tzinfo is None:
        clock = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        return CLOCK, _length(clock), None
    return (SPAN, _length(value), None) if isinstance(value, timedelta) else None


def _days(months: int) -> int:
    """Days from 1970 to the first day of a month. NumPy's are 64 bits, and the calendar repeats every 400 years."""
    cycles, rest = divmod(months, 4800)
    return cycles * 146_097 + int(np.datetime64(rest, "M").astype("datetime64[D]").astype(np.int64))


def _of_text(text: str, kind: TimeType) -> tuple[str, int, bool | None] | None:
    """The same of a text in the form of ISO 8601."""
    found = {MOMENT: _MOMENT, CLOCK: _TIME}[kind.family].fullmatch(text.strip()) if kind.family != SPAN else None
    if found is None:
        return None
    parts = found.groupdict()
    hours, minutes, seconds = (int(parts[name] or 0) for name in "hms")
    try:
        time(hours, minutes, seconds)
        day = date.fromisoformat(parts["day"]) if kind.family == MOMENT else date(1970, 1, 1)
    except ValueError:  # 30 February
        return None
    clock = ((hours * 60 + minutes) * 60 + seconds) * 10**9 + int((parts["f"] or "").ljust(9, "0"))
    if kind.family == CLOCK:
        return CLOCK, clock, None
    zone = parts["zone"]
    moment = (day.toordinal() - date(1970, 1, 1).toordinal()) * _NANOSECONDS["D"] + clock
    if zone not in (None, "Z"):
        sign, digits = (-1 if zone[0] == "-" else 1), zone[1:].replace(":", "")
        moment -= sign * (int(digits[:2]) * 60 + int(digits[2:])) * _NANOSECONDS["m"]
    return MOMENT, moment, zone is not None


def _length(span: timedelta) -> int:
    more = getattr(span, "nanoseconds", 0)  # of pandas
    return ((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds) * 1000 + more
