# SPDX-License-Identifier: Apache-2.0
"""A small API server of Kubernetes for HTTPRoutes and GRPCRoutes, over HTTP, with a Gateway that takes them.

It behaves as upstream says; where, stands at each quirk:
- A: kubernetes.io/docs/reference/using-api/api-concepts
- C: kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions
- S: kubernetes.io/docs/reference/using-api/server-side-apply
- G: gateway-api.sigs.k8s.io, the types of HTTPRoute and `RouteStatus`
What it cannot do (other kinds, chunked lists, server-side apply, dry runs) it refuses.
"""

import asyncio
import contextlib
import copy
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

from aiohttp import web
from kubernetes_structures import GrpcSpec, HttpSpec
from pydantic import ValidationError

from trireme.base.http_servers.http_thread import HttpThread

GROUP = "gateway.networking.k8s.io"
KINDS: dict[str, tuple[str, type[HttpSpec | GrpcSpec]]] = {
    "httproutes": ("HTTPRoute", HttpSpec),
    "grpcroutes": ("GRPCRoute", GrpcSpec),
}
CONTROLLER = "example.com/gateway"
Key = tuple[str, str, str]  # plural, namespace, name
Json = dict[str, Any]
_BOOKMARK_S = 0.2  # upstream: about once a minute, promised at no interval (A, "Watch bookmarks")


class Cluster:
    """The objects that etcd keeps: they outlive each API server.

    Attributes:
        takes_after_s: how long the Gateway's controller takes to write the status of a change; None: it is not there.
        says: what the controller says of each condition, in place of True.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[Key, Json] = {}
        self.history: list[tuple[int, str, Key, Json]] = []
        self.version = 100
        self.compacted = 0
        self.takes_after_s: float | None = 0.0
        self.says: dict[str, tuple[str, str]] = {}

    def create(self, route: Json, *, manager: str = "helm") -> None:
        plural = next(each for each, (kind, _) in KINDS.items() if kind == route["kind"])
        key = (plural, route["metadata"]["namespace"], route["metadata"]["name"])
        made = copy.deepcopy(route)
        made["metadata"] |= {"generation": 1, "managedFields": [_managed(manager, "f:spec", "f:parentRefs", "f:rules")]}
        with self.lock:
            self._store(key, made, "ADDED")
        self._gateway_looks(key)

    def get(self, plural: str, namespace: str, name: str) -> Json:
        with self.lock:
            return copy.deepcopy(self.objects[plural, namespace, name])

    def change(self, key: Key, changed: Json, *, manager: str) -> Json:
        """Store a change of the main resource: its status stays, its generation grows with its specification (C)."""
        with self.lock:
            old = self.objects[key]
            new = copy.deepcopy(changed)
            new.pop("status", None)
            if "status" in old:
                new["status"] = copy.deepcopy(old["status"])
            is_new = new["spec"] != old["spec"]
            metadata = new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + is_new}
            if new["spec"] == old["spec"] and _notes(new) == _notes(old):
                return copy.deepcopy(old)  # nothing is written (A: no-op changes keep the version)
            fields = copy.deepcopy([each for each in old["metadata"]["managedFields"] if each["manager"] != manager])
            for entry in fields if is_new else []:
                entry["fieldsV1"].get("f:spec", {}).pop("f:rules", None)  # whoever changes the list owns it alone (S)
            own = _managed(manager, "f:spec", "f:rules") if is_new else _managed(manager, "f:metadata", "f:annotations")
            metadata["managedFields"] = [*fields, own]
            self._store(key, new, "MODIFIED")
        self._gateway_looks(key)
        return self.get(*key)

    def edit(self, plural: str, namespace: str, name: str, edit: Callable[[Json], None], *, manager: str) -> None:
        """Change a route as a person would."""
        with self.lock:
            changed = self.get(plural, namespace, name)
            edit(changed)
            self.change((plural, namespace, name), changed, manager=manager)

    def remove(self, plural: str, namespace: str, name: str) -> None:
        with self.lock:
            gone = self.objects[plural, namespace, name]
            self._store((plural, namespace, name), copy.deepcopy(gone), "DELETED")
            del self.objects[plural, namespace, name]

    def forget_the_past(self) -> None:
        """Compact, as etcd does every five minutes: older versions can no longer be watched from (A)."""
        with self.lock:
            self.compacted = self.version
            self.history.clear()

    def touch_another(self) -> None:
        """Let time pass for other objects: the version is the whole cluster's."""
        with self.lock:
            self.version += 1

    def write_status(self, key: Key, generation: int | None = None) -> None:
        """Say of a route what the Gateway does; the status has a resource of its own, and no generation (C)."""
        with self.lock:
            route = copy.deepcopy(self.objects[key])
            observed = route["metadata"]["generation"] if generation is None else generation
            conditions = []
            for kind in ("Accepted", "ResolvedRefs", "PartiallyInvalid"):
                status, reason = self.says.get(kind, ("True", kind))
                if kind in self.says or kind != "PartiallyInvalid":  # there only where it is true (G)
                    one = {
                        "type": kind,
                        "status": status,
                        "reason": reason,
                        "message": "",
                        "lastTransitionTime": _now(),
                    }
                    conditions.append({**one, "observedGeneration": observed})
            parents = [
                {"parentRef": copy.deepcopy(each), "controllerName": CONTROLLER, "conditions": conditions}
                for each in route["spec"]["parentRefs"]
            ]
            if route.get("status") != {"parents": parents}:
                route["status"] = {"parents": parents}
                kept = [each for each in route["metadata"]["managedFields"] if each["manager"] != "gateway"]
                route["metadata"]["managedFields"] = [
                    *kept,
                    {**_managed("gateway", "f:status", "f:parents"), "subresource": "status"},
                ]
                self._store(key, route, "MODIFIED")

    def _gateway_looks(self, key: Key) -> None:
        if self.takes_after_s == 0:
            self.write_status(key)
        elif self.takes_after_s is not None:
            timer = threading.Timer(self.takes_after_s, self.write_status, (key,))
            timer.daemon = True
            timer.start()

    def _store(self, key: Key, route: Json, what: str) -> None:
        self.version += 1
        route["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = route
        self.history.append((self.version, what, key, copy.deepcopy(route)))


class ApiServer:
    """A life of an API server, on a port of this machine.

    Attributes:
        token: what callers bring; "": nobody is asked.
        allowed: verbs that the account has.
        fails: statuses of the next answers, the first first.
        loses: answers of the next changes that are lost, after they were stored.
        stalls_s: how long the next answer takes.
        refuses_by_status: 410 is the status of a watch, and no event in it.
        asked: verbs so far, each with its query.
        before_patch, before_watch: what happens just before one is answered.
    """

    def __init__(self, cluster: Cluster, port: int = 0) -> None:
        self.cluster = cluster
        self.token = ""
        self.allowed = {"get", "list", "watch", "patch"}
        self.fails: list[int] = []
        self.loses = 0
        self.stalls_s = 0.0
        self.refuses_by_status = False
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.before_patch: Callable[[], None] = lambda: None
        self.before_watch: Callable[[], None] = lambda: None
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(16)
        self.port = int(listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._cuts = threading.Event()
        app = web.Application()
        app.router.add_get(f"/apis/{GROUP}/v1/namespaces/{{namespace}}/{{plural}}", self._list)
        app.router.add_patch(f"/apis/{GROUP}/v1/namespaces/{{namespace}}/{{plural}}/{{name}}", self._patch)
        self._http = HttpThread(app, listener, silence_s=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End as a process that is killed: watches are cut in the middle."""
        self._cuts.set()
        self._http.close()

    def cut_watches(self) -> None:
        self._cuts.set()

    def verbs(self, verb: str) -> list[dict[str, str]]:
        return [query for each, query in self.asked if each == verb]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        verb = "watch" if query.get("watch", "").lower() in ("true", "1") else "list"
        if (refusal := await self._refusal(request, verb)) is not None:
            return refusal
        if request.match_info["plural"] not in KINDS:
            return _status(404, "NotFound", "the server could not find the requested resource")
        field, _, name = query.get("fieldSelector", "").partition("=")
        if field != "metadata.name":  # of custom resources: it and the namespace (C, "Selectable fields")
            return _status(400, "BadRequest", f"field label not supported: {field}")
        if verb == "watch":
            return await self._watch(request, name, query)
        plural, namespace = request.match_info["plural"], request.match_info["namespace"]
        with self.cluster.lock:
            items = [route for key, route in self.cluster.objects.items() if key == (plural, namespace, name)]
            found = {
                "kind": f"{KINDS[plural][0]}List",
                "apiVersion": f"{GROUP}/v1",
                "metadata": {"resourceVersion": str(self.cluster.version), "continue": ""},
                "items": copy.deepcopy(items),
            }
        return web.json_response(found)

    async def _watch(self, request: web.Request, name: str, query: dict[str, str]) -> web.StreamResponse:
        key = (request.match_info["plural"], request.match_info["namespace"], name)
        self.before_watch()
        if self.refuses_by_status and int(query["resourceVersion"]) < self.cluster.compacted:
            return _status(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for event in self._events(request, key):
                await response.write(json.dumps(event).encode() + b"\n")
            if self._cuts.is_set() and request.transport is not None:
                request.transport.abort()
        return response

    async def _events(self, request: web.Request, key: Key) -> AsyncIterator[Json]:
        """Yield the changes after a version until `timeoutSeconds`; 410 comes as an event of a 200 (A)."""
        self._cuts.clear()
        begin_s = bookmark_s = time.monotonic()
        seen = int(request.query["resourceVersion"])
        with self.cluster.lock:
            if seen < self.cluster.compacted:
                gone = f"too old resource version: {seen} ({self.cluster.compacted})"
                yield {"type": "ERROR", "object": _body(410, "Expired", gone)}
                return
        while time.monotonic() < begin_s + float(request.query.get("timeoutSeconds", 1800)) and not self._cuts.is_set():
            with self.cluster.lock:
                new = [each for each in self.cluster.history if each[0] > seen and each[2] == key]
                latest = self.cluster.version
            for version, what, _, route in new:
                seen = version
                yield {"type": what, "object": route}
            if request.query.get("allowWatchBookmarks") and time.monotonic() > bookmark_s + _BOOKMARK_S:
                bookmark_s, seen = time.monotonic(), latest
                object_ = {"kind": KINDS[key[0]][0], "apiVersion": f"{GROUP}/v1"}
                yield {"type": "BOOKMARK", "object": {**object_, "metadata": {"resourceVersion": str(latest)}}}
            await asyncio.sleep(0.01)

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        if (refusal := await self._refusal(request, "patch")) is not None:
            return refusal
        if request.content_type != "application/merge-patch+json":  # JSON patches are allowed too; nobody sends one
            what = f"the body of the request was in an unknown format: {request.content_type}"
            return _status(415, "UnsupportedMediaType", what)  # as of a strategic merge patch (C)
        body = json.loads(await request.read())
        self.before_patch()
        with self.cluster.lock:
            answer = self._patched(request, body)
        if self.loses:
            self.loses -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    def _patched(self, request: web.Request, body: Json) -> web.Response:
        key = (request.match_info["plural"], request.match_info["namespace"], request.match_info["name"])
        old = self.cluster.objects.get(key)
        if old is None:
            return _status(404, "NotFound", f'{key[0]}.{GROUP} "{key[2]}" not found')
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted is not None and wanted != old["metadata"]["resourceVersion"]:  # optimistic concurrency (A)
            what = f'Operation cannot be fulfilled on {key[0]}.{GROUP} "{key[2]}": the object has been modified'
            return _status(409, "Conflict", what)
        new = merged(old, body)
        try:
            KINDS[key[0]][1].model_validate_json(json.dumps(new["spec"]), by_alias=True, by_name=False)
        except ValidationError as exc:
            return _status(422, "Invalid", str(exc))
        if request.query.get("dryRun") == "All":  # all but the storing (A, "Dry-run")
            return web.json_response(new)
        manager = request.query.get("fieldManager") or request.headers["User-Agent"].split("/")[0]
        return web.json_response(self.cluster.change(key, new, manager=manager))

    async def _refusal(self, request: web.Request, verb: str) -> web.Response | None:
        self.asked.append((verb, dict(request.query)))
        if self.stalls_s:
            seconds, self.stalls_s = self.stalls_s, 0.0
            await asyncio.sleep(seconds)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if verb not in self.allowed:
            what = f'{request.match_info["plural"]}.{GROUP} is forbidden: User "rollout" cannot {verb} resource'
            return _status(403, "Forbidden", what)
        if self.fails:
            return _status(self.fails.pop(0), "InternalError", "etcdserver: leader changed")
        return None


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[ApiServer]:
    """Run one API server."""
    with ApiServer(cluster) as server:
        yield server


def merged(old: Any, patch: Any) -> Any:
    """Return the result of a JSON merge patch: objects merge, null removes, all else replaces (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_body(code, reason, message), status=code)


def _body(code: int, reason: str, message: str) -> Json:
    failure = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**failure, "message": message, "reason": reason, "code": code}


def _managed(manager: str, part: str, *fields: str) -> Json:
    entry = {"manager": manager, "operation": "Update", "apiVersion": f"{GROUP}/v1", "time": _now()}
    return {**entry, "fieldsType": "FieldsV1", "fieldsV1": {part: {each: {} for each in fields}}}


def _notes(route: Json) -> Json:
    return route["metadata"].get("annotations") or {}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
