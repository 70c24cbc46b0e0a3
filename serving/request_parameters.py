# SPDX-License-Identifier: Apache-2.0
"""The parameters of a request beside its tensors: which release it is for, and of disaggregated serving which phase."""

import json
from collections.abc import Mapping

from ensemble_configs.errors import RequestError

RELEASE = "release"

Parameters = Mapping[str, object]


def parameters_of(text: str) -> Parameters:
    """Those of a request, as Triton gives them: a JSON object, or nothing."""
    return json.loads(text) if text else {}


def release_asked_for(parameters: Parameters) -> str | None:
    """The version that a request names, None: none.

    Raises:
        RequestError: it is not a number.
    """
    value = parameters.get(RELEASE)
    if value is None:
        return None
    # A number in JSON or gRPC; text too, for clients that can send nothing else. Never a path.
    if isinstance(value, bool) or not str(value).isascii() or not str(value).isdecimal():
        raise RequestError(f"release must be the number of a release, got {value!r}", field=RELEASE, value=value)
    return str(value).lstrip("0") or "0"


def check_release(parameters: Parameters, own: str) -> None:
    """For a model that serves its own release alone.

    Raises:
        RequestError: the request names another one.
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
    """Whether a request is for the prefill's server of two: its parameter `request_type` says ``context_only``."""
    return parameters.get("request_type") == "context_only"
