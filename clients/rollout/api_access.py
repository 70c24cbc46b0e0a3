# SPDX-License-Identifier: Apache-2.0
"""The certificate and the keys that a rollout's API needs: none, unless strangers could decide the rollout."""

from pathlib import Path

from clients.rollout.records.rollout_plan import Plan, SplitBy
from trireme.base.errors import RequestError
from trireme.base.http_servers.http_access import HttpAccess, is_loopback

NO_ACCESS = HttpAccess()


def access_of(plan: Plan) -> HttpAccess:
    """Return the access that a plan names."""
    cert_file, key_file, token_file = (
        Path(name) if name else None for name in (plan.cert_file, plan.key_file, plan.token_file)
    )
    return HttpAccess(cert_file, key_file, token_file)


def check_access(access: HttpAccess, host: str, plan: Plan) -> None:
    """Refuse what cannot be used, and a host on which strangers could decide a rollout.

    Raises:
        SpecError: a file cannot be used.
        RequestError: other machines can report outcomes that decide, without a key or without TLS for it.
    """
    is_safe = access.tls() is not None
    has_key = access.keys() is not None
    if is_loopback(host) or (plan.split_by is not SplitBy.CLIENTS and not has_key):
        return
    if not has_key:
        raise RequestError(
            f"host {host} lets other machines report the outcomes that decide this rollout; give --token-file with "
            "--cert-file and --key-file, or listen on 127.0.0.1",
            field="host",
            value=host,
        )
    if not is_safe:
        raise RequestError(
            f"host {host} with --token-file has no TLS, and a key could be read on its way; give --cert-file and "
            "--key-file, or listen on 127.0.0.1 behind a proxy that ends TLS",
            field="host",
            value=host,
        )
