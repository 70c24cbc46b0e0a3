# SPDX-License-Identifier: Apache-2.0
"""The callers of a deployment's OpenID Connect provider, where the package that checks tokens is installed."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from importlib.util import find_spec

from ensemble_configs.spec.callers.oidc_spec import OidcSpec
from gateway.access.caller import Callers
from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install


def check_oidc(spec: OidcSpec) -> None:
    """Refuse a provider that this process cannot use.

    Raises:
        SpecError: a package is missing, or `ca_file` cannot be used.
    """
    if find_spec("jwt") is None:
        raise SpecError(
            f"gateway.oidc needs the Python package 'pyjwt', which is not installed: {how_to_install('gateway')}",
            field="gateway.oidc",
        )
    from gateway.access.oidc.provider import Provider  # noqa: PLC0415 - needs an extra

    Provider(spec)


@asynccontextmanager
async def open_oidc(spec: OidcSpec, *, others: Callers | None, models: Collection[str]) -> AsyncIterator[Callers]:
    """Check tokens of a provider inside the block.

    Args:
        others: checks what is no token; None: nothing else is accepted.
        models: all that are served.
    """
    from gateway.access.oidc.oidc_callers import OidcCallers  # noqa: PLC0415 - needs an extra
    from gateway.access.oidc.provider import Provider  # noqa: PLC0415 - needs an extra
    from gateway.access.oidc.provider_keys import ProviderKeys  # noqa: PLC0415 - needs an extra

    async with (
        Provider(spec) as provider,
        ProviderKeys(provider, refresh_s=spec.refresh_s, grace_s=spec.grace_s) as keys,
    ):
        with OidcCallers(spec, keys, others=others, models=models) as callers:
            yield callers
