# SPDX-License-Identifier: Apache-2.0
"""A server that computes prompts for others: the connection, the requests on it, and whether to ask it now."""

import time
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from serving.disaggregation.prefill_message import Answer, answer_of
from trireme.base.errors import Unavailable

# A server that fails is left alone for so long, and twice as long each time, so that no prompt waits for it.
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0
PREFILL_FAILED = "prefill_failed"  # of an error that is the server's, and not the prompt's
# A host with several addresses is asked in turn; `dns:///` makes a server of each.
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.lb_policy_name", "round_robin"),
)


class PrefillServer:
    """A server by its url, for one event loop.

    Args:
        certified_host: the name that its certificate is for, where the url has an address.
    """

    def __init__(self, url: str, spec: PrefillServersSpec, *, certified_host: str | None = None) -> None:
        self.url = url
        self._certified_host = certified_host
        self.num_asked = 0
        self._spec = spec
        self._channel: Any = None
        self._pause_s = 0.0
        self._is_away_until_s = 0.0

    @property
    def is_worth_asking(self) -> bool:
        """Return whether the server has not just failed, and has room."""
        return time.monotonic() >= self._is_away_until_s and self.num_asked < self._spec.max_in_flight

    async def ask(self, message: Any) -> Answer:
        """Return the server's answer for a prompt.

        Raises:
            Unavailable: the server does not answer, or not in time, or answers without anything; it is left alone.
            ServingError: the server refuses this prompt; others may be asked of it.
        """
        self.num_asked += 1
        try:
            found = await self._call(message)
        except grpc.aio.AioRpcError as exc:
            await self._leave_alone()
            raise Unavailable(f"{self.url}: {exc.code().name}: {exc.details()}", reason=PREFILL_FAILED) from exc
        except (OSError, ValueError) as exc:  # a file with a certificate or key
            await self._leave_alone()
            raise Unavailable(f"{self.url} cannot be asked: {exc}", reason=PREFILL_FAILED) from exc
        finally:
            self.num_asked -= 1
        self._pause_s = 0.0
        if found is None:
            raise Unavailable(f"{self.url}: it ended without {message.outputs[0].name}", reason=PREFILL_FAILED)
        return found

    async def close(self) -> None:
        """Close the connection; what is asked of it ends."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _call(self, message: Any) -> Answer | None:
        if self._channel is None:
            self._channel = self._open()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        call = stub.ModelStreamInfer(iter([message]), timeout=self._spec.timeout_s, metadata=self._key())
        try:
            async for response in call:
                if (found := answer_of(response)) is not None:
                    return found
            return None
        finally:
            call.cancel()

    async def _leave_alone(self) -> None:
        """Ask nothing of the server for a while; the next connection reads the files with certificates again."""
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._is_away_until_s = time.monotonic() + self._pause_s
        if self.num_asked <= 1:  # else those that run would end with it
            await self.close()

    def _open(self) -> Any:
        address = self.url.removeprefix("grpc://")
        if not address.startswith("grpcs://"):
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        files = (self._spec.ca_file, self._spec.key_file, self._spec.cert_file)
        credentials = grpc.ssl_channel_credentials(*(None if file is None else file.read_bytes() for file in files))
        host = self._certified_host
        options = _OPTIONS if host is None else (*_OPTIONS, ("grpc.ssl_target_name_override", host))
        return grpc.aio.secure_channel(address.removeprefix("grpcs://"), credentials, options=options)

    def _key(self) -> tuple[tuple[str, str], ...]:
        if self._spec.token_file is None:
            return ()
        key = self._spec.token_file.read_text(encoding="utf-8").strip()
        header = self._spec.token_header
        return ((header, f"Bearer {key}" if header == "authorization" else key),)
