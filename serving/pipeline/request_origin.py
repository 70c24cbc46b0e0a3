# SPDX-License-Identifier: Apache-2.0
"""The origin of a request: what it brings beside its tensors, handed on from step to step."""

from typing import NamedTuple

from ensemble_configs.chat.prefix_numbers import PromptPrefix
from serving.pipeline.direct.direct_replies import DirectWay
from serving.telemetry.request_observer import UNTRACED, RequestObserver


class RequestOrigin(NamedTuple):
    """The names of a request, its deadline and its observer."""

    request_id: str = ""  # given by the client; may be empty or used twice
    stream_name: str = ""  # of the gRPC stream or HTTP request that brought it, in the graph, too; empty: not known
    timeout_us: int = 0  # Triton's own parameter `timeout`; 0: no deadline
    way: DirectWay | None = None  # to the frontend, past Triton; None: all responses go through Triton
    observer: RequestObserver = UNTRACED  # the owner of the request's sink reports the end of the request to it
    prefix: PromptPrefix | None = None  # of the prompt's text, where the release tells KV events


NO_ORIGIN = RequestOrigin()
