# SPDX-License-Identifier: Apache-2.0
"""The checks of the response that a request asks for, made before the engine generates anything."""

from collections.abc import Iterable

from ensemble_configs.render.tensors import RESULT_TENSORS
from serving.engines.seam.base import EngineInfo
from serving.pipeline.running_request import ReplySink
from serving.requests.engine_request import ResponseOptions
from trireme.base.errors import RequestError

_MEASURED = tuple(row.engine for row in RESULT_TENSORS if row.field == "return_perf_metrics")


def check_response(options: Iterable[ResponseOptions], sink: ReplySink, info: EngineInfo) -> None:
    """Check that this deployment and its engine can give the responses that a request asks for.

    Raises:
        RequestError: the request asks for a stream where each request gets one response, or for a measurement that the
            engine does not make.
    """
    for asked in options:
        if asked.is_streaming and sink.takes_one:
            name = "streaming" if asked.stream_context is None else "stream"
            raise RequestError(
                f"this deployment gives each request one response (decoupled: false); leave {name} out, or set "
                "decoupled: true in the deployment and ask by ModelStreamInfer or generate_stream",
                field=name,
                value=True,
            )
        if asked.return_perf_metrics:
            _check_measured(sink, info)


def _check_measured(sink: ReplySink, info: EngineInfo) -> None:
    """Refuse measurements that the engine does not make; a request that names no outputs asks for all measurements.

    Upstream's clients read each measurement, and end with a traceback where one is missing.
    """
    named = sink.named_outputs()
    missing = [name for name in _MEASURED if name in info.why_not and (not named or name in named)]
    if missing:
        known = ", ".join(name for name in _MEASURED if name not in info.why_not)
        raise RequestError(
            f"{missing[0]}, which return_perf_metrics asks for, is not known to the provider {info.provider!r}: "
            f"{info.why_not[missing[0]]}; of the measurements name these among the outputs alone: {known}",
            field=missing[0],
            provider=info.provider,
        )
