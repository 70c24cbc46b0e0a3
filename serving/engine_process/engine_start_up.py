# SPDX-License-Identifier: Apache-2.0
"""The wait for an engine that loads: until it is ready, has said why not, has ended, or has taken too long."""

from serving.engine_guard.guarded_process import EngineProcess
from serving.engine_process.engine_messages import Broken, Channel, ChannelClosed, Ready
from serving.engines.seam.base import EngineInfo
from trireme.base.errors import ServerError

_ENDS_S = 20.0  # for what is known to end to be gone


def wait_until_loaded(process: EngineProcess, channel: Channel, timeout_s: float | None) -> EngineInfo:
    """Return what the engine is, once it is loaded.

    Args:
        process: is ended if it does not load.
        channel: to the engine.
        timeout_s: how long it may take; None: for ever.

    Raises:
        ServerError: it was not loaded; the text has its own words, and what it and its ranks logged last.
    """
    try:
        return read_info(channel, timeout_s)
    except ChannelClosed as exc:
        why = process.why_ended(_ENDS_S)
        process.end()
        how, _, more = why.partition("; ")
        raise ServerError(f"the engine process ended with {how} while loading; {more}") from exc
    except TimeoutError as exc:
        process.end()
        raise ServerError(
            f"the engine has not loaded within {timeout_s:g} s (engine.load_timeout_s); {process.why_ended(0.0)}",
            reason="load_timeout",
        ) from exc
    except ServerError as exc:
        process.wait(_ENDS_S)
        process.end()
        if why := process.why_ended(0.0):
            raise ServerError(f"{exc.message}; {why}", **exc.facts) from exc
        raise


def read_info(channel: Channel, timeout_s: float | None = None) -> EngineInfo:
    """Return what the engine says of itself when it is ready.

    Raises:
        ServerError: it could not be loaded.
        ChannelClosed: it has ended.
        TimeoutError: it has said nothing for `timeout_s`.
    """
    report = channel.receive_one(timeout_s=timeout_s)  # with Ready may come what the first step said
    if isinstance(report, Broken):
        raise ServerError(f"the engine could not be loaded: {report.error}")
    assert isinstance(report, Ready), report
    return report.info
