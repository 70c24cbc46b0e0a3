# SPDX-License-Identifier: Apache-2.0
"""The paths of the page: its files as they are, for everybody, with headers that let it load and run nothing else.

No file holds a secret. What the page shows it asks the API for, with the key that a person types in.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from clients.openai_api.api_error import ApiError
from gateway.access.caller import Caller

_FOLDER = Path(__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_MAY_LOAD = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # no script of the page can make markup of a text
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _MAY_LOAD.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # of browsers that do not know frame-ancestors
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # asked for again each time, and sent again where the file is another one
}


class _File(NamedTuple):
    data: bytes
    content_type: str
    etag: str


class PageRoutes:
    """The handler of the page's files, which are read once."""

    def __init__(self) -> None:
        self._files = {file.name: _read(file) for file in sorted(_FOLDER.iterdir()) if file.suffix in _TYPES}

    async def file(self, request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Return a file of the page; nothing where the browser has it.

        Raises:
            ApiError: there is no such file.
        """
        found = self._files.get(request.path.rpartition("/")[2] or "index.html")
        if found is None:
            raise ApiError(f"there is no {request.path[:64]!r} here", code="not_found", status=404)
        headers = _HEADERS | {"ETag": found.etag}
        if found.etag in [
            part.strip().removeprefix("W/") for part in request.headers.get("If-None-Match", "").split(",")
        ]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.data, headers=headers | {"Content-Type": found.content_type})


def _read(file: Path) -> _File:
    data = file.read_bytes()
    return _File(data, _TYPES[file.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
