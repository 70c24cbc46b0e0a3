# SPDX-License-Identifier: Apache-2.0
"""The errors that `trireme.client` raises and the commands print; each has a message, and facts by name."""

from trireme.base.errors import (
    AccessDenied,
    BuildError,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    SpecError,
    Unavailable,
)

__all__ = [
    "AccessDenied",
    "BuildError",
    "QueueFull",
    "RequestCancelled",
    "RequestError",
    "RequestTimeout",
    "ServerError",
    "ServingError",
    "SpecError",
    "Unavailable",
]
