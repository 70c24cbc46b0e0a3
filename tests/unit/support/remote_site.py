# SPDX-License-Identifier: Apache-2.0
"""The control of a server over HTTP, and callers of it, for tests of the two."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clients.access import Access
from clients.remote_control import RemoteControl
from serving.supervisor.control_api import ControlApi
from trireme.base.http_servers.http_access import HttpAccess

KEY = "0123456789abcdef"


class RemoteSite:
    """The servers of one test, with one key; each may be ended and started again at its port."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        self.keys.write_text(f"{KEY}\n")
        self.access = Access(token_file=str(self.keys))
        self._opened: list[ControlApi] = []

    def serve(
        self, handlers: Mapping[str, Any], *, host: str = "127.0.0.1", port: int = 0, **files: Path
    ) -> ControlApi:
        access = HttpAccess(**{"token_file": self.keys, **files}, options="--remote-")
        self._opened.append(ControlApi(handlers, host=host, port=port, access=access))
        return self._opened[-1]

    def control(self, api: ControlApi, access: Access | None = None, **options: Any) -> RemoteControl:
        access = self.access if access is None else access
        return RemoteControl(f"{'https' if access.uses_tls else 'http'}://127.0.0.1:{api.port}", access, **options)

    def close(self) -> None:
        for api in self._opened:
            api.close()


Serve = Callable[..., ControlApi]
