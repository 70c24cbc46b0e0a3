# SPDX-License-Identifier: Apache-2.0
"""Durations as people read them."""


def duration(seconds: float) -> str:
    """Return a duration for people: 0.4 s, 59 s, 3 min, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
