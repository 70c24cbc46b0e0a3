# SPDX-License-Identifier: Apache-2.0
"""The path that tells admins how the gateway, its servers and the rollout do at this moment."""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec
from aiohttp import web

from gateway.access.caller import Caller
from gateway.json_answers import json_answer
from gateway.live.recent_requests import WINDOW_S, ModelFigures, RecentRequests
from gateway.live.rollout_state import ROLLOUTS_OPTION, Rollouts, RolloutView
from gateway.live.server_figures import METRICS_OPTION, MetricsPage, ServerFigures
from gateway.served_models import ServedModels
from gateway.servers.server import Server
from gateway.servers.server_pool import ServerPool
from trireme.base.errors import AccessDenied

_log = logging.getLogger("trireme.gateway")


class ServerState(msgspec.Struct, frozen=True):
    """The state of a server.

    Attributes:
        taking_requests_for: models for which it takes requests.
        running_requests: of this gateway there.
        figures: that the server tells; None: nobody said where.
    """

    url: str
    taking_requests_for: list[str]
    running_requests: int
    figures: ServerFigures | None


class Status(msgspec.Struct, frozen=True):
    """The answer of the path.

    Attributes:
        at: seconds since 1970.
        window_s: of the figures of models.
        rollouts: None: nobody said where they are kept.
        connect_by: options of the gateway that would tell what is None.
    """

    at: float
    window_s: int
    models: list[ModelFigures]
    servers: list[ServerState]
    rollouts: RolloutView | None
    connect_by: dict[str, str]


class StatusRoutes:
    """The handler of the status.

    Args:
        page_of: returns the reader of a page of metrics, by its URL.
        rollouts: None: nobody said where they are kept.
    """

    def __init__(
        self,
        models: ServedModels,
        pool: ServerPool,
        recent: RecentRequests,
        *,
        page_of: Callable[[str], MetricsPage],
        rollouts: Rollouts | None = None,
    ) -> None:
        self._models, self._pool, self._recent = models, pool, recent
        self._page_of, self._rollouts = page_of, rollouts
        self._pages: dict[str, MetricsPage] = {}  # by the URL of their server

    async def status(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Tell the figures of this moment."""
        urls = {server.url for server in self._pool.servers}
        self._pages = {url: page for url, page in self._pages.items() if url in urls}  # the others have gone
        servers = asyncio.gather(*map(self._state, self._pool.servers))
        rollouts = None if self._rollouts is None else await self._rollouts.view()
        status = Status(
            at=time.time(),
            window_s=WINDOW_S,
            models=self._recent.figures([model.name for model in self._models]),
            servers=list(await servers),
            rollouts=rollouts,
            connect_by={"figures": METRICS_OPTION, "rollouts": ROLLOUTS_OPTION},
        )
        return json_answer(status, headers={"Cache-Control": "no-store"})

    async def _state(self, server: Server) -> ServerState:
        figures = None
        if server.page is not None:
            if server.url not in self._pages:
                self._pages[server.url] = self._page_of(server.page.url)
            figures = await self._pages[server.url].figures()
        taken = [model.name for model in self._models if await self._takes(server, model.triton_model)]
        return ServerState(server.url, taken, self._num_running(server), figures)

    async def _takes(self, server: Server, model: str) -> bool:
        if not self._pool.is_single:  # they are asked each second
            return server.takes(model)
        try:
            return await self._pool.is_ready(model)
        except AccessDenied as exc:
            _log.error("the server refuses this gateway: %s", exc.message)
            return False

    def _num_running(self, server: Server) -> int:
        return self._recent.num_running if self._pool.is_single else server.num_running
