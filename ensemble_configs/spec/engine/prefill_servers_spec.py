# SPDX-License-Identifier: Apache-2.0
"""The servers that compute prompts for another server, as typed data."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ensemble_configs.spec.base import Number, Positive, Spec
from trireme.base.errors import RequestError
from trireme.base.server_names import is_server_name, read_server_name

_ADDRESS = re.compile(r"(?:grpcs?://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def _is_address(value: str) -> str:
    if is_server_name(value):
        try:
            read_server_name(value, field="a url")
        except RequestError as exc:
            raise ValueError(exc.message) from exc
        return value
    found = _ADDRESS.fullmatch(value)
    if found is None or not 1 <= int(found[1]) <= 65535:
        raise ValueError(
            "an address is host:port of a server's gRPC port, grpcs://host:port with TLS, or dns:///name:port for each "
            "address of a name"
        )
    return value


class PrefillServersSpec(Spec):
    """Servers that compute this release's long prompts, of which the KV cache then comes to this server's engine.

    A prompt that none of them computes, for whatever reason, is computed here.
    """

    urls: tuple[Annotated[str, AfterValidator(_is_address)], ...] = Field(
        min_length=1,
        description="host:port of their gRPC ports, grpcs://host:port with TLS; dns:///name:port (grpcs+dns:///): each "
        "address that DNS has for a name, such as the pods of a headless Service, is a server. Each serves the same "
        "release's number",
    )
    model: str = Field(
        default="tensorrt_llm",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="the model of theirs that takes token ids",
    )
    min_prompt_tokens: Positive = Field(default=512, description="shorter prompts are computed here")
    max_in_flight: Positive = Field(
        default=32, le=4096, description="prompts asked of one server at a time; with more, prompts are computed here"
    )
    timeout_s: Number = Field(
        default=10.0, gt=0, le=3600, description="a prompt that is not computed by then is computed here"
    )
    ca_file: Path | None = Field(
        default=None, description="PEM file of the authorities that grpcs:// trusts; none: the machine's own"
    )
    cert_file: Path | None = Field(default=None, description="PEM file of this server's certificate as their client")
    key_file: Path | None = Field(default=None, description="PEM file of that certificate's private key")
    token_file: Path | None = Field(default=None, description="file with the key or token that they ask for")
    token_header: str = Field(
        default="authorization",
        pattern=r"^[a-z0-9][a-z0-9_.-]*$",
        description="header that carries the key; in `authorization` as Bearer KEY, elsewhere as it is",
    )

    @model_validator(mode="after")
    def _each_once(self) -> "PrefillServersSpec":
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"urls must differ, got {', '.join(self.urls)}")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together; name both or neither")
        is_tls = all(url.startswith(("grpcs:", "grpcs+dns:")) for url in self.urls)
        if any((self.ca_file, self.cert_file)) and not is_tls:
            raise ValueError(
                "ca_file and cert_file are for TLS; write every url as grpcs://host:port or grpcs+dns:///name:port, or "
                "leave them out"
            )
        return self
