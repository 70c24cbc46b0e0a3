# SPDX-License-Identifier: Apache-2.0
"""The source of an adapter's observers: it sets up the log, observes each request, and flushes spans at the end.

A caller's trace context comes as the request's parameters `traceparent` and `tracestate`, which is also what Triton
makes of headers and gRPC metadata of these names; or, with Triton's own spans, from Triton.
"""

import importlib.util
import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_configs.spec.observability_spec import TracingSpec, read_adapter_parameters
from serving.process.server_log import set_up_adapter_log
from serving.requests.request_parameters import TRACEPARENT, TRACESTATE
from serving.telemetry.request_observer import UNTRACED, RequestObserver
from serving.telemetry.request_trace import Adapter, RequestTrace
from serving.telemetry.trace_context import TraceContext, new_trace, read_context
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install

if TYPE_CHECKING:
    from serving.telemetry.span_export import SpanExport

_log = logging.getLogger("trireme.tracing")

_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_installed() -> None:
    """Check that OpenTelemetry's packages are installed.

    Raises:
        SpecError: a package is missing.
    """
    for package in _PACKAGES:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise SpecError(
                f"tracing needs the package {package.replace('.', '-')}, which is not installed; "
                f"{how_to_install('tracing')}, or leave tracing out of the deployment",
                field="tracing",
            )


class RequestTracer:
    """The tracing of one adapter, and the observers of its requests.

    Args:
        args: arguments of the model's `initialize`.

    Raises:
        SpecError: the deployment asks for traces, and OpenTelemetry's packages are not installed.
    """

    def __init__(self, args: Mapping[str, str]) -> None:
        model, version = args["model_name"], args["model_version"]
        set_up_adapter_log(args)
        self._spec, logs = read_adapter_parameters(json.loads(args.get("model_config", "{}")))
        self._export = None if self._spec is None else _open(self._spec, model, version)
        self._adapter = Adapter(model, version, self._export, logs.requests)
        self._is_asked = self._export is not None or logs.requests != "none"

    def begin(self, request: Any) -> RequestObserver:
        """Return the observer of a Triton request that has just arrived."""
        if not self._is_asked:
            return UNTRACED
        try:
            caller = self._caller(request)
            own = new_trace(self._ratio) if caller is None else caller.child()
            return RequestObserver(RequestTrace(self._adapter, own, caller, request.request_id()))
        except Exception:  # a request that cannot be traced must still be answered
            _log.exception("a request could not be traced", extra={"is_of_request": True})
            return UNTRACED

    def close(self) -> None:
        """Send the spans that are left."""
        if self._export is not None:
            self._export.close()

    @property
    def _ratio(self) -> float:
        if self._spec is None or self._spec.is_triton_traced:  # what Triton does not trace is in no trace
            return 0.0
        return self._spec.sample_ratio

    def _caller(self, request: Any) -> TraceContext | None:
        client = _context_in(_as_object(request.parameters()))
        if self._spec is None or not self._spec.is_triton_traced or (client and not client.is_sampled):
            return client
        triton = _context_in(_as_object(request.trace().get_context() or ""))
        if triton is None or (client and triton.trace_id != client.trace_id):
            return client  # of some gRPC streams (2 of 60) Triton 2.51 does not see what their client has sent
        return triton  # its own span is between the client's and ours


def _open(spec: TracingSpec, model: str, version: str) -> "SpanExport":
    check_installed()
    from serving.telemetry.span_export import SpanExport  # noqa: PLC0415  a server without tracing needs none of it

    # The last tells the histograms of several servers, and of several instances of a model, apart.
    instance = f"{socket.gethostname()}-{os.getpid()}"
    service = {"service.name": "trireme", "trireme.model": model, "trireme.release": version}
    return SpanExport(spec, service=service | {"service.instance.id": instance})


def _context_in(sent: Mapping[str, object]) -> TraceContext | None:
    return read_context(sent.get(TRACEPARENT), sent.get(TRACESTATE, ""))


def _as_object(text: str) -> Mapping[str, object]:
    """Return the JSON object in `text`; empty where there is none: the adapter refuses that with its own error."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
