# SPDX-License-Identifier: Apache-2.0
"""A gateway in a thread of its own, before a scripted server; and plain HTTP calls of it."""

import asyncio
import contextlib
import http.client
import json
import threading
from pathlib import Path
from typing import Any, NamedTuple, Self

from clients.access import NO_ACCESS, Access
from ensemble_configs.spec.gateway_spec import GatewaySpec
from gateway.access.key_store import KeyStore
from gateway.gateway import Gateway, Limits
from gateway.ledger.ledger import Ledger
from gateway.redis_place import RedisPlace
from gateway.served_models import ServedModel, ServedModels
from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.http_servers.http_thread import listen
from trireme.base.store_place import StorePlace

MODELS = (ServedModel("demo", "ensemble", 100),)


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        """Return the events of a stream, with `[DONE]` as its text."""
        parts = self.data.decode().split("\n\n")
        assert parts.pop() == ""
        assert all(part.startswith("data: ") for part in parts)
        said = [part.removeprefix("data: ") for part in parts]
        return [text if text == "[DONE]" else json.loads(text) for text in said]


class RunningGateway:
    """A gateway that runs inside a `with`."""

    def __init__(
        self,
        *server_urls: str,
        models: tuple[ServedModel, ...] = MODELS,
        token_file: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        keys: KeyStore | None = None,
        ledger: Ledger | None = None,
        rules: GatewaySpec = GatewaySpec(),  # noqa: B008  immutable
        cache_redis: RedisPlace | None = None,
        limits: Limits = Limits(exit_timeout_s=2.0),  # noqa: B008  immutable
        metrics_urls: tuple[str, ...] = (),
        rollouts: StorePlace | None = None,
        server_access: Access = NO_ACCESS,
    ) -> None:
        cert_file, key_file = certificate or (None, None)
        access = HttpAccess(cert_file=cert_file, key_file=key_file, token_file=token_file)
        self._gateway = Gateway(
            ServedModels(models, rules.aliases, rules.tiers),
            urls=server_urls,
            server_access=server_access,
            access=access,
            keys=keys,
            ledger=ledger,
            rules=rules,
            cache_redis=cache_redis,
            limits=limits,
            metrics_urls=metrics_urls,
            rollouts=rollouts,
        )
        self._listener = listen("127.0.0.1", 0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        is_there = threading.Event()

        async def run() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            is_there.set()
            await self._gateway.serve(self._listener, stop=self._stop)

        self._thread = threading.Thread(target=lambda: asyncio.run(run()))
        self._thread.start()
        is_there.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Tell the gateway to end."""
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop.set)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Return the answer to a request; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def chat(self, **fields: Any) -> Answer:
        """Return the answer to a chat of one message."""
        return self.chat_with("", **fields)

    def chat_with(self, key: str, **fields: Any) -> Answer:
        """Return the answer to a chat of one message by the holder of a key."""
        body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return self.call("POST", "/v1/chat/completions", body, **headers)

    def complete(self, **fields: Any) -> Answer:
        """Return the answer to a completion."""
        return self.call("POST", "/v1/completions", {"prompt": "Hi", **fields})
