# SPDX-License-Identifier: Apache-2.0
"""The wait for an engine that loads, until it is ready, reports an error, ends, or takes too long."""

from serving.engine_guard.guarded_process import EngineProcess
from serving.engine_process.engine_messages import Broken, Channel, ChannelClosed, Ready
from serving.engines.seam.base import EngineInfo
from trireme.base.errors import ServerError

_ENDS_S = 20.0  # for a process that is about to end


def wait_until_loaded(process: EngineProcess, channel: Channel, timeout_s: float | None) -> EngineInfo:
    """Wait until the engine is loaded, and return its description.

    Args:
        process: process of the engine; it is ended if the engine does not load.
        channel: channel to the engine.
        timeout_s: seconds that loading may take; None: any time.

    Raises:
        ServerError: the engine was not loaded; the text has its error, and the last lines that it and its ranks logged.
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
    """Wait for the engine's first message, and return its description.

    Raises:
        ServerError: the engine could not be loaded.
        ChannelClosed: the engine has ended.
        TimeoutError: no message came within `timeout_s`.
    """
    report = channel.receive_one(timeout_s=timeout_s)  # with Ready may come the report of the first step
    if isinstance(report, Broken):
        raise ServerError(f"the engine could not be loaded: {report.error}")
    assert isinstance(report, Ready), report
    return report.info
