# SPDX-License-Identifier: Apache-2.0
"""The gateway: its routes, its server and its connection to Triton, put together."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from clients.access import NO_ACCESS, Access
from clients.embedding_messages import EmbeddingRequest
from clients.tls_context import check_access
from ensemble_configs.spec.gateway_spec import GatewaySpec, SemanticCacheSpec
from gateway.access.caller import ANYBODY, Callers
from gateway.access.key_book import GRACE_S, KeyBook
from gateway.access.open_oidc import check_oidc, open_oidc
from gateway.access.token_file import TokenFile
from gateway.allowances import Allowances
from gateway.answering import Answering
from gateway.attempt import ModelAnswerer
from gateway.cache.answer_store import AnswersInMemory, AnswersInRedis
from gateway.cache.cached_answerer import AnswerCache
from gateway.cache.semantic_cache import SemanticCache
from gateway.embeddings.embedding_routes import EmbeddingRoutes
from gateway.fallback.chains import Chains
from gateway.fallback.managed_api import ManagedApi
from gateway.gateway_metrics import GatewayMetrics
from gateway.generation import Generation
from gateway.health_routes import HealthRoutes
from gateway.http_server import HttpServer, Route
from gateway.ledger.budgets import Budgets
from gateway.ledger.ledger import Ledger
from gateway.limits.limit_keeper import LimitKeeper
from gateway.limits.limiter import Limiter
from gateway.limits.tenant_limits import tenant_limits
from gateway.live.recent_requests import RecentRequests
from gateway.live.rollout_state import Rollouts
from gateway.live.server_figures import MetricsPage, page_addresses
from gateway.live.status_routes import StatusRoutes
from gateway.model_routes import ModelRoutes
from gateway.openai_routes import OpenAiRoutes
from gateway.page.page_routes import PageRoutes
from gateway.redis_place import RedisPlace, connected
from gateway.response_socket import ResponseSockets
from gateway.running_answer import Observers
from gateway.served_models import ServedModels
from gateway.servers.open_pool import ServerPlaces, open_pool
from gateway.servers.server_pool import SILENCE_S, ServerPool
from trireme.base.errors import SpecError
from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.http_servers.renewed_certificate import RenewedCertificate
from trireme.base.server_names import is_server_name, read_server_name
from trireme.base.store_place import StorePlace

if TYPE_CHECKING:
    from gateway.access.key_store import KeyStore  # needs an extra


class Limits(NamedTuple):
    """The limits of a gateway.

    Attributes:
        timeout_s: of a request, waiting included.
        max_body_bytes: of a request.
        max_connections: of all callers.
        exit_timeout_s: how long running requests may go on once the gateway is told to end.
        has_affinity: whether prompts go to the server that had their beginnings.
        silence_s: of a stream, before it goes on at another server.
        keys_grace_s: how long known keys are accepted while their database is away.
    """

    timeout_s: float = 600.0
    max_body_bytes: int = 8 << 20
    max_connections: int = 4096
    exit_timeout_s: float = 30.0
    has_affinity: bool = True
    silence_s: float = SILENCE_S
    keys_grace_s: float = GRACE_S


_CACHE_SILENCE_S = 0.1  # of a Redis: its answer is to be there sooner than the model's
_OPEN, _USUAL, _NO_RULES = HttpAccess(), Limits(), GatewaySpec()


class Gateway:
    """A gateway in front of one server.

    Args:
        urls: of the gRPC endpoints of one Triton or several that serve alike, as `AsyncTritonClient` or
            `read_server_name` takes them.
        server_access: certificates and key for them.
        access: the certificate that callers see, and the file of keys that they bring.
        keys: store of the keys that they bring, in place of a file; whoever opened it closes it.
        ledger: of the requests; whoever entered it leaves it. None: none is kept.
        limits_redis: has the use of limits, for several gateways; None: this process has it.
        cache_redis: has the kept answers, for several gateways; None: this process has them.
        rules: the deployment's for gateways.
        metrics_urls: of the pages of metrics, one for each URL, for the choice of a server by its load, and for the
            figures that admins see; empty: unknown.
        rollouts: place of their store, for the same; None: unknown.

    Raises:
        RequestError: a URL is no address of a server.
        SpecError: a file of either access cannot be used, answers are to be kept of callers who are all alike, or the
            pages of metrics are not those of the servers.
    """

    def __init__(
        self,
        models: ServedModels,
        *,
        urls: Sequence[str],
        server_access: Access = NO_ACCESS,
        access: HttpAccess = _OPEN,
        keys: "KeyStore | None" = None,
        ledger: Ledger | None = None,
        limits_redis: RedisPlace | None = None,
        cache_redis: RedisPlace | None = None,
        rules: GatewaySpec = _NO_RULES,
        limits: Limits = _USUAL,
        metrics_urls: Sequence[str] = (),
        rollouts: StorePlace | None = None,
    ) -> None:
        check_access(server_access)
        access.keys()
        self.models = models
        for url in filter(is_server_name, urls):
            read_server_name(url)
        self._urls, self._server_access, self._access, self._limits = urls, server_access, access, limits
        self._keys, self._ledger, self._rules = keys, ledger, rules
        self._limits_redis, self._cache_redis = limits_redis, cache_redis
        self._metrics_urls, self._rollouts = page_addresses(metrics_urls, urls), rollouts
        self._apis = [ManagedApi(spec) for spec in rules.managed_apis]
        if rules.answer_cache is not None and access.token_file is not None:
            raise SpecError(
                "gateway.answer_cache needs keys that tell callers apart, and those of --token-file do not; take "
                "--keys, or leave answer_cache out",
                field="answer_cache",
            )
        if rules.oidc is not None:
            if access.token_file is not None:
                raise SpecError(
                    "--token-file is a file of keys that are all alike, and gateway.oidc tells callers apart; take "
                    "--keys beside it, or leave either out",
                    field="token_file",
                )
            check_oidc(rules.oidc)
        self._certificate = RenewedCertificate(access)

    @property
    def is_tls(self) -> bool:
        """Return whether callers connect by TLS."""
        return self._certificate.context is not None

    async def serve(self, listener: socket.socket, *, stop: asyncio.Event) -> None:
        """Answer requests until `stop` is set, and those that run then to their end or `exit_timeout_s`.

        Raises:
            Unavailable: the database of keys is away at the start.
        """
        metrics, recent = GatewayMetrics(), RecentRequests()
        if self._ledger is not None:
            metrics.watch_ledger(self._ledger.num_waiting_bytes)
        async with (
            self._callers() as callers,
            self._limiter() as limiter,
            self._budgets() as budgets,
            self._pool(metrics) as pool,
            recent.counted(),
            contextlib.AsyncExitStack() as stack,
        ):
            if not pool.is_single:
                metrics.watch_servers(pool.servers)
            generation = Generation(pool)
            has_others = any(step.api for chain in self._rules.fallbacks for step in chain.steps)
            health = HealthRoutes(self.models, generation, metrics, has_others=has_others)
            cache = await self._cache(metrics, pool, stack)
            chains = Chains(
                [ModelAnswerer(model, generation) for model in self.models.texts],
                self._rules,
                {api.name: await stack.enter_async_context(api) for api in self._apis},
                cache,
            )
            allowances = Allowances(limiter, budgets, tenant_limits(self._rules))
            observers, timeout_s = Observers(metrics, self._ledger, recent), self._limits.timeout_s
            answering = Answering(self.models, chains, observers, allowances, timeout_s=timeout_s)
            sockets = ResponseSockets(answering, callers, max_bytes=self._limits.max_body_bytes)
            server = HttpServer(
                [
                    *_routes(OpenAiRoutes(answering), sockets, ModelRoutes(self.models), health),
                    Route("POST", r"/v1/embeddings", EmbeddingRoutes(answering, pool, timeout_s=timeout_s).embed),
                    *_page_routes(PageRoutes(), self._status(pool, recent)),
                ],
                callers=callers,
                metrics=metrics,
                max_body_bytes=self._limits.max_body_bytes,
                max_connections=self._limits.max_connections,
            )
            await server.serve(listener, certificate=self._certificate, stop=stop)
            health.is_stopping = True
            await sockets.close()
            await server.finish(self._limits.exit_timeout_s)

    @contextlib.asynccontextmanager
    async def _callers(self) -> AsyncIterator[Callers]:
        async with contextlib.AsyncExitStack() as stack:
            book: Callers | None = None
            if self._keys is not None:
                book = await stack.enter_async_context(KeyBook(self._keys, grace_s=self._limits.keys_grace_s))
            if self._rules.oidc is None:
                yield book or TokenFile(self._access)
                return
            models = [model.name for model in self.models]
            yield await stack.enter_async_context(open_oidc(self._rules.oidc, others=book, models=models))

    def _pool(self, metrics: GatewayMetrics) -> contextlib.AbstractAsyncContextManager[ServerPool]:
        places = ServerPlaces(
            urls=self._urls,
            models=frozenset(model.triton_model for model in self.models),
            access=self._server_access,
            pages=self._metrics_urls,
            has_feeds=True,
        )
        return open_pool(
            places,
            has_affinity=self._limits.has_affinity,
            silence_s=self._limits.silence_s,
            on_move=metrics.note_move,
        )

    @contextlib.asynccontextmanager
    async def _limiter(self) -> AsyncIterator[LimitKeeper]:
        if self._limits_redis is None:
            yield Limiter()
            return
        from gateway.limits.redis_limiter import RedisLimiter  # noqa: PLC0415 - needs an extra

        admits = self._rules.when_limits_are_away == "admit"
        async with (
            connected(self._limits_redis.url) as redis,
            RedisLimiter(redis, admits_when_away=admits) as limiter,
        ):
            yield limiter

    async def _cache(
        self, metrics: GatewayMetrics, pool: ServerPool, stack: contextlib.AsyncExitStack
    ) -> AnswerCache | None:
        rules = self._rules.answer_cache
        if rules is None:
            return None
        semantic = self._semantic(rules.semantic, metrics, pool)
        if self._cache_redis is None:
            memory = AnswersInMemory(ttl_s=rules.ttl_s, max_bytes=rules.max_mib << 20)
            return AnswerCache(memory, metrics, semantic)
        redis = await stack.enter_async_context(connected(self._cache_redis.url, silence_s=_CACHE_SILENCE_S))
        return AnswerCache(AnswersInRedis(redis, ttl_s=rules.ttl_s), metrics, semantic)

    def _semantic(
        self, spec: SemanticCacheSpec | None, metrics: GatewayMetrics, pool: ServerPool
    ) -> SemanticCache | None:
        if spec is None:
            return None
        model = self.models.get_embedding(spec.embedding_model, ANYBODY)

        async def embed(text: str) -> bytes:
            deadline_s = asyncio.get_running_loop().time() + spec.wait_ms / 1000
            [vector] = (await pool.embed(EmbeddingRequest(texts=(text,)), model=model, deadline_s=deadline_s)).vectors
            return vector

        return SemanticCache(spec, embed, metrics)

    def _status(self, pool: ServerPool, recent: RecentRequests) -> StatusRoutes:
        page_of = functools.partial(MetricsPage, models=self.models.texts, access=self._server_access)
        rollouts = None if self._rollouts is None else Rollouts(self._rollouts)
        return StatusRoutes(self.models, pool, recent, page_of=page_of, rollouts=rollouts)

    def _budgets(self) -> contextlib.AbstractAsyncContextManager[Budgets | None]:
        return contextlib.nullcontext(None) if self._ledger is None else Budgets(self._ledger.store)


def _routes(openai: OpenAiRoutes, sockets: ResponseSockets, models: ModelRoutes, health: HealthRoutes) -> list[Route]:
    return [
        Route("POST", r"/v1/(?:chat/completions|completions|responses|messages)", openai.generate),
        Route("POST", r"/v1/messages/count_tokens", openai.count_tokens),
        Route("GET", r"/v1/responses", sockets.converse),
        Route("GET", r"/v1/models", models.list_models),
        Route("GET", r"/v1/models/.{1,128}", models.describe_model),
        Route("GET", r"/openapi\.json", models.describe_api, is_open=True),
        Route("GET", r"/health/live", health.live, is_open=True),
        Route("GET", r"/health/ready", health.ready, is_open=True),
        Route("GET", r"/metrics", health.metrics, is_for_admins=True),
    ]


def _page_routes(page: PageRoutes, status: StatusRoutes) -> list[Route]:
    return [
        Route("GET", r"/(?:page/[a-z_]{1,32}\.[a-z]{2,4})?", page.file, is_open=True),
        Route("GET", r"/admin/status", status.status, is_for_admins=True),
    ]
