# SPDX-License-Identifier: Apache-2.0
"""What a request may not expect of its response, refused before anything is generated for it."""

from collections.abc import Iterable

from ensemble_configs.errors import RequestError
from ensemble_configs.tensors import RESULT_TENSORS
from serving.engines.base import EngineInfo
from serving.requests import ResponseOptions
from serving.running_request import ReplySink

_MEASURED = tuple(row.engine for row in RESULT_TENSORS if row.field == "return_perf_metrics")


def check_response(options: Iterable[ResponseOptions], sink: ReplySink, info: EngineInfo) -> None:
    """Check what the prompts of a request ask of their responses.

    Raises:
        RequestError: a stream where each request gets one response, or by name a measurement that the engine has not.
    """
    for asked in options:
        if asked.is_streaming and sink.takes_one:
            name = "streaming" if asked.stream_context is None else "stream"
            raise RequestError(
                f"this deployment answers each request at once (decoupled: false); leave {name} out, or set "
                "decoupled: true in the deployment and ask by ModelStreamInfer or generate_stream",
                field=name,
                value=True,
            )
        if asked.return_perf_metrics:
            _check_measured(sink, info)


def _check_measured(sink: ReplySink, info: EngineInfo) -> None:
    """Upstream's client takes what it has named to be there, and ends with a traceback where it is not."""
    named = sink.named_outputs()
    for name in _MEASURED:
        if name in named and name in info.why_not:
            raise RequestError(
                f"{name} is an output that the provider {info.provider!r} cannot fill; {info.why_not[name]}",
                field=name,
                provider=info.provider,
            )
