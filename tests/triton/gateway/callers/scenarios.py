# SPDX-License-Identifier: Apache-2.0
"""The scenarios of a program that calls a gateway: each is run, and their outcomes are written as one JSON object."""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

Scenario = Callable[["Site"], Awaitable[None] | None]


class Site(NamedTuple):
    """The addresses and keys that a program is told on its command line."""

    url: str
    key: str
    narrow_key: str
    away_url: str
    nowhere_url: str


def run_all(*scenarios: Scenario) -> None:
    """Run scenarios one after the other; the failure of one does not end the others."""
    site = Site(**json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps({each.__name__: _failure(each, site) for each in scenarios}) + "\n")


def _failure(scenario: Scenario, site: Site) -> str:
    try:
        found: Any = scenario(site)
        if inspect.iscoroutine(found):
            asyncio.run(found)
    except BaseException:
        return traceback.format_exc()
    return ""
