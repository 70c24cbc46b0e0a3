# SPDX-License-Identifier: Apache-2.0
"""The events of a release's KV cache as typed data: who is told which blocks it holds, and how."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ensemble_configs.spec.base import Boolean, Positive, Spec

_ENDPOINT = re.compile(r"tcp://(\*|[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})|ipc:///[^\s]+")
_NAME = r"^[^@\s{}]*(\{(host|address)\}[^@\s{}]*)*$"
NO_EVENTS = {
    "openvino": "OpenVINO GenAI tells no events of its KV cache",
}


def _is_endpoint(value: str) -> str:
    found = _ENDPOINT.fullmatch(value)
    if found is None or not 0 < int(found["port"] or 1) < 65536:
        raise ValueError(
            "input should be an endpoint of ZeroMQ: tcp://*:5557 to listen, tcp://HOST:5557 to call a subscriber that "
            "listens, or ipc:///PATH"
        )
    return value


Endpoint = Annotated[str, Field(max_length=1024), AfterValidator(_is_endpoint)]


class KvEventsSpec(Spec):
    """Events of the KV cache, told over HTTP (`/kv_events` on the metrics port) and, with an endpoint, over ZeroMQ."""

    endpoint: Endpoint | None = Field(
        default=None,
        description="of ZeroMQ, as vLLM's: tcp://*:5557 listens, tcp://HOST:5557 calls; none: over HTTP alone",
    )
    replay_endpoint: Endpoint | None = Field(
        default=None, description="where subscribers ask for what they have missed, such as tcp://*:5558; none: nowhere"
    )
    model_name: Annotated[str, Field(pattern=r"^[^@\s]+$", max_length=256)] | None = Field(
        default=None, description="what routers call the model, in the topic; none: the model's name"
    )
    server_name: Annotated[str, Field(pattern=_NAME, min_length=1, max_length=256)] = Field(
        default="{host}",
        description="what routers call this server, in the topic kv@SERVER@MODEL; {host} and {address} stand for the "
        "machine's",
    )
    num_kept_batches: Positive = Field(
        default=10_000, le=1_000_000, description="batches of events that can be asked for again"
    )
    tells_tokens: Boolean = Field(
        default=False, description="over HTTP the blocks' token ids too, which are what was asked; ZeroMQ always does"
    )

    @model_validator(mode="after")
    def _replays_are_of_a_publisher(self) -> "KvEventsSpec":
        if self.replay_endpoint is not None and self.endpoint is None:
            raise ValueError("replay_endpoint is for subscribers of endpoint; name that too, or leave it out")
        if self.replay_endpoint is not None and self.replay_endpoint == self.endpoint:
            raise ValueError(f"replay_endpoint and endpoint are both {self.endpoint}; they must differ")
        return self

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports that the server listens on for this."""
        found = (_ENDPOINT.fullmatch(each or "") for each in (self.endpoint, self.replay_endpoint))
        return tuple(int(match["port"]) for match in found if match is not None and match[1] == "*")
