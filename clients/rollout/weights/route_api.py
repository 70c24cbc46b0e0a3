# SPDX-License-Identifier: Apache-2.0
"""A route in the Kubernetes API, by Kubernetes' own client library, which is imported here alone, when it is used."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from clients.rollout.weights.gateway_route import Conflict, Expired, Listed
from clients.rollout.weights.route_weights import Route
from clients.rollout.weights.weights import RouteTaken
from trireme.base.errors import AccessDenied, RequestError, SpecError, Unavailable
from trireme.base.extras import how_to_install

GROUP, VERSION = "gateway.networking.k8s.io", "v1"
KINDS = {"HTTPRoute": "httproutes", "GRPCRoute": "grpcroutes"}
FIELD_MANAGER = "trireme-rollout"
_CALL_S = 10.0
_GRACE_S = 10.0  # beyond the server's own end of a watch, for a connection that says nothing any more


class KubernetesRoute:
    """A route by its name; a `clients.rollout.weights.gateway_route.RouteApi`.

    Args:
        kind: ``HTTPRoute`` or ``GRPCRoute``.
        configuration: a `kubernetes.client.Configuration`; None: the pod's service account, or the kubeconfig.
        call_s: how long an answer may take.

    Raises:
        SpecError: the library is not installed, or nothing says where the API server is.
    """

    def __init__(
        self, kind: str, namespace: str, name: str, *, configuration: Any = None, call_s: float = _CALL_S
    ) -> None:
        library = _library()
        self.kind, self.namespace, self.name = kind, namespace, name
        client = library.client.ApiClient(_configured(library) if configuration is None else configuration)
        self._library = library
        self._call_s = call_s
        self._api = library.client.CustomObjectsApi(client)
        self._of = {"group": GROUP, "version": VERSION, "namespace": namespace, "plural": KINDS[kind]}
        self._where = f"{kind} {namespace}/{name}"

    def exists(self) -> bool:
        """Return whether there is such a route; False also where the cluster has no routes of the kind."""
        with self._errors():
            try:
                self._list()
            except LookupError:
                return False
            except self._library.client.ApiException as exc:
                if exc.status == 404:
                    return False
                raise
        return True

    def read(self) -> Listed:
        """Return the route and the version of its list.

        An object's own version may be older than what the server can watch from, and would be refused for ever.
        """
        with self._errors():
            try:
                return self._list()
            except LookupError:
                raise RouteTaken(
                    f"there is no {self._where}; name another with --weights gateway:NAMESPACE/ROUTE, or make it again",
                    field="weights",
                    value=f"{self.namespace}/{self.name}",
                    reason="taken",
                ) from None

    def _list(self) -> Listed:
        found: Any = self._api.list_namespaced_custom_object(
            **self._of, field_selector=f"metadata.name={self.name}", _request_timeout=self._call_s
        )
        [route] = found["items"] or [None]
        if route is None:
            raise LookupError(self._where)
        return Listed(self._named(route), str(found["metadata"]["resourceVersion"]))

    def patch(self, change: Mapping[str, Any], *, is_trial: bool = False) -> Route:
        """Apply a JSON merge patch; as a trial, as a dry run, for which the same rights are needed.

        The type is named: of custom objects the server takes no strategic merge patch, and the library's choice has
        changed from version to version (kubernetes-client/python issues 866 and 2119).
        """
        with self._errors():
            changed: Any = self._api.patch_namespaced_custom_object(
                **self._of,
                name=self.name,
                body=dict(change),
                field_manager=FIELD_MANAGER,
                **({"dry_run": "All"} if is_trial else {}),
                field_validation="Strict",
                _content_type="application/merge-patch+json",
                _request_timeout=self._call_s,
            )
        return self._named(changed)

    def watch(self, version: str, *, timeout_s: float) -> Iterator[Listed]:
        """Yield the route whenever it changes; of a bookmark only the version, with an empty route.

        With `timeout_seconds` the library ends when the server does, and neither tries again by itself nor hides 410.
        """
        watch = self._library.watch.Watch()
        seconds = max(1, math.ceil(timeout_s))  # whole ones; 0 would be the server's choice, some minutes
        with (
            self._errors(),
            contextlib.closing(
                watch.stream(
                    self._api.list_namespaced_custom_object,
                    **self._of,
                    field_selector=f"metadata.name={self.name}",
                    resource_version=version,
                    allow_watch_bookmarks=True,
                    timeout_seconds=seconds,
                    _request_timeout=(self._call_s, seconds + _GRACE_S),
                )
            ) as events,
        ):
            for event in events:
                if event is None:  # a line that was cut off
                    return
                route: Any = event["raw_object"]
                if event["type"] == "DELETED":
                    raise Expired(f"{self._where} was removed; it is read again")
                at = str(route["metadata"]["resourceVersion"])
                yield Listed({} if event["type"] == "BOOKMARK" else self._named(route), at)

    def _named(self, route: Any) -> Route:
        return {"kind": self.kind, **route}

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the library's errors as those of the project."""
        import urllib3.exceptions  # noqa: PLC0415  # comes with the library

        try:
            yield
        except self._library.client.ApiException as exc:
            raise self._error_of(exc) from exc
        except urllib3.exceptions.HTTPError as exc:
            raise Unavailable(
                f"the Kubernetes API does not answer about {self._where}: {' '.join(str(exc).split())[:200]}",
                reason="unreachable",
            ) from exc

    def _error_of(self, exc: Any) -> Exception:
        said = f"{exc.status} {exc.reason or ''}".strip()
        match exc.status:
            case 409:
                return Conflict(f"{self._where} was changed meanwhile")
            case 410:
                return Expired(f"the version of {self._where} is too old: {said}")
            case 401 | 403:
                return AccessDenied(
                    f"the Kubernetes API refuses {self._where} ({said}); give this account get, list, watch and patch "
                    f"on {KINDS[self.kind]} of {GROUP} in {self.namespace} (docs/kubernetes.md)",
                    reason="rbac",
                )
            case 404:
                return RouteTaken(
                    f"there is no {self._where}, or the cluster has no {KINDS[self.kind]} of {GROUP}/{VERSION}; name "
                    "another with --weights gateway:NAMESPACE/ROUTE",
                    field="weights",
                    value=f"{self.namespace}/{self.name}",
                    reason="taken",
                )
            case int(status) if status == 429 or status >= 500:
                return Unavailable(f"the Kubernetes API cannot answer about {self._where} now: {said}", reason="busy")
        return RequestError(
            f"the Kubernetes API refuses a change of {self._where}: {said} {(exc.body or '')[:300]}", field="weights"
        )


def _library() -> Any:
    try:
        import kubernetes  # noqa: PLC0415  # an extra, and 0.3 s
        import kubernetes.client  # noqa: PLC0415
        import kubernetes.config  # noqa: PLC0415
        import kubernetes.watch  # noqa: PLC0415
    except ImportError as exc:
        raise SpecError(
            "--weights gateway:... needs Kubernetes' client library, which is not installed: "
            f"{how_to_install('kubernetes')}",
            field="weights",
        ) from exc
    return kubernetes


def _configured(library: Any) -> Any:
    """Return where the API server is and who asks: a pod's service account, or the kubeconfig of `KUBECONFIG`."""
    found = library.client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            library.config.load_incluster_config(client_configuration=found)
        else:
            library.config.load_kube_config(client_configuration=found)
    except (library.config.ConfigException, OSError) as exc:
        raise SpecError(
            f"nothing says where the Kubernetes API is: {exc}; run in a pod with a service account, or set KUBECONFIG",
            field="weights",
        ) from exc
    found.retries = False  # what fails is told; the caller knows what may be tried again
    return found
