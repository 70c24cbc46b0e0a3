# SPDX-License-Identifier: Apache-2.0
"""The key that keeps requests on one release: a tenant, a parameter, or a header that Triton passes on."""

from collections.abc import Mapping

from serving.requests.tensor_sink import Tensors

TENANT = "tenant"


def key_of(source: str, tensors: Tensors, parameters: Mapping[str, object]) -> str:
    """Return the key of a request; "": it has none, or nothing keeps requests on one release.

    Args:
        source: ``tenant``, ``parameter:NAME`` or ``header:NAME``; "": nothing. A header is a parameter by its name in
            lower case, as gRPC sends names.
    """
    kind, _, name = source.partition(":")
    if kind == TENANT:
        return tenant_of(tensors)
    value = parameters.get(name.lower() if kind == "header" else name)
    return "" if value is None else str(value)


def tenant_of(tensors: Tensors) -> str:
    """Return the tenant of a request's first prompt; "": none."""
    tenants = tensors.get(TENANT)
    if tenants is None or not tenants.size:
        return ""
    first = tenants.reshape(-1)[0]
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)
