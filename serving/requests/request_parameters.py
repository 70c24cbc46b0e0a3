# SPDX-License-Identifier: Apache-2.0
"""The parameters of a request beside its tensors: its release, its scheduling, and its phase of disaggregated serving.

The parameters of a trace are read in `serving.telemetry.request_tracer`.
"""

import difflib
import functools
import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from serving.engines.seam.scheduling import Priority, tenant_name
from serving.requests.tensor_sink import Tensors
from trireme.base.errors import RequestError

RELEASE = "release"
PRIORITY_CLASS = "priority_class"  # not `priority`: Triton keeps that parameter to itself
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
# From the server's frontends, which report clients that leave (serving.frontend.common.departures).
STREAM_NAME = "trireme-stream"
KNOWN_PARAMETERS = (RELEASE, PRIORITY_CLASS, "tenant", "deadline_ms", "request_type", TRACEPARENT, TRACESTATE)
_KNOWN = (STREAM_NAME, *KNOWN_PARAMETERS)
_MAX_PARAMETERS = 256
_MAX_CHARS = 65_536  # of all parameters together
_CLASSES = {priority.name.lower(): int(priority) for priority in Priority}

Parameters = Mapping[str, object]


def parameters_of(text: str) -> Parameters:
    """Return the parameters of a request, read from Triton's text: a JSON object, or nothing.

    Clients may send other parameters of their own, as they may to upstream.

    Raises:
        RequestError: the parameters are too many or too long, or a name is almost that of a known parameter, so it
            would be ignored.
    """
    if len(text) > _MAX_CHARS:
        message = f"the parameters have {len(text)} characters; send at most {_MAX_CHARS} beside the tensors"
        raise RequestError(message, field="parameters", value=len(text), max=_MAX_CHARS)
    found: Parameters = json.loads(text) if text else {}
    if len(found) > _MAX_PARAMETERS:
        message = f"the request has {len(found)} parameters; send at most {_MAX_PARAMETERS}"
        raise RequestError(message, field="parameters", value=len(found), max=_MAX_PARAMETERS)
    for name in found:
        if meant := _misspelt(name):
            raise RequestError(f"the parameter {name} is not known; {meant} is", field=name)
    return found


@functools.lru_cache(maxsize=1024)
def _misspelt(name: str) -> str | None:
    """Return the known parameter that was probably meant; None: no name is close."""
    close = difflib.get_close_matches(name.lower()[:64], _KNOWN, n=1, cutoff=0.85)
    return close[0] if close and name not in _KNOWN else None


def release_asked_for(parameters: Parameters) -> str | None:
    """Return the version that a request names; None: it names none.

    Raises:
        RequestError: the version is not a number.
    """
    value = parameters.get(RELEASE)
    if value is None:
        return None
    # A number in JSON or gRPC; text too, for clients that can send nothing else. Never a path.
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdecimal():
        raise RequestError(f"release must be the number of a release, got {value!r}", field=RELEASE, value=value)
    return str(value).lstrip("0") or "0"


def stream_name_of(parameters: Parameters) -> str:
    """Return the name that the server's frontends gave a request's stream; empty: it came through no frontend."""
    return str(parameters.get(STREAM_NAME, ""))


def check_release(parameters: Parameters, own: str) -> None:
    """Check that a request does not name another release, for a model that serves only its own release.

    Raises:
        RequestError: the request names another release.
    """
    version = release_asked_for(parameters)
    if version is not None and version != own:
        raise RequestError(
            f"this model serves release {own} alone, and release {version} is asked for; ask tensorrt_llm_bls, which "
            f"takes a release by request, or version {version} of this model",
            field=RELEASE,
            value=version,
        )


def is_context_only(parameters: Parameters) -> bool:
    """Return whether a request is for the prefill server: its parameter `request_type` is ``context_only``."""
    return parameters.get("request_type") == "context_only"


def with_scheduling(tensors: Tensors, parameters: Parameters) -> Tensors:
    """Return the tensors of a request, with tensors for its parameters `priority_class`, `tenant` and `deadline_ms`.

    A tensor that the request has goes before a parameter.

    Raises:
        RequestError: a parameter has a wrong type or value.
    """
    if not parameters.keys() & {PRIORITY_CLASS, "tenant", "deadline_ms"}:
        return tensors
    found: dict[str, npt.NDArray[np.generic]] = {}
    num_prompts = max((len(array) for array in tensors.values()), default=1)
    if PRIORITY_CLASS in parameters:
        name = parameters[PRIORITY_CLASS]
        if not isinstance(name, str) or name not in _CLASSES:
            raise RequestError(
                f"{PRIORITY_CLASS} must be one of {', '.join(_CLASSES)}; got {name!r}", field=PRIORITY_CLASS, value=name
            )
        found["priority"] = np.full((num_prompts, 1), _CLASSES[name], np.int32)
    if "tenant" in parameters:
        found["tenant"] = np.full((num_prompts, 1), tenant_name(parameters["tenant"]).encode(), np.object_)
    if "deadline_ms" in parameters:
        found["deadline_ms"] = np.full((num_prompts, 1), _milliseconds(parameters["deadline_ms"]), np.int32)
    return {**found, **tensors}


def with_timeout(tensors: Tensors, timeout_us: int) -> Tensors:
    """Return the tensors of a request with a deadline for Triton's own parameter `timeout`.

    The timeout is a deadline as `deadline_ms` is, and the sooner of both counts.

    Args:
        tensors: tensors of the request.
        timeout_us: timeout in microseconds; 0: none.
    """
    if not timeout_us:
        return tensors
    timeout_ms = np.int32(min(-(-timeout_us // 1000), np.iinfo(np.int32).max))
    num_prompts = max((len(array) for array in tensors.values()), default=1)
    own = tensors.get("deadline_ms", np.full((num_prompts, 1), timeout_ms, np.int32))
    return {**tensors, "deadline_ms": np.minimum(own, timeout_ms)}


def _milliseconds(value: object) -> int:
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdecimal() or len(str(value)) > 9:
        raise RequestError(
            f"deadline_ms must be a whole number of milliseconds below a billion, got {value!r}",
            field="deadline_ms",
            value=value,
        )
    return int(str(value))
