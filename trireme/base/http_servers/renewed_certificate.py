# SPDX-License-Identifier: Apache-2.0
"""The certificate of an HTTP server that is read again when its files have changed, as cert-manager changes them."""

import logging
import ssl
import time
from collections.abc import Callable

from trireme.base.errors import SpecError
from trireme.base.http_servers.http_access import HttpAccess, file_state

_log = logging.getLogger("trireme.http.certificate")


class RenewedCertificate:
    """The certificate that an HTTP server shows; connections that are there keep theirs.

    Args:
        access: names the files.
        now_s: seconds since 1970, as times of files are.

    Attributes:
        context: of connections; None: they have no TLS.

    Raises:
        SpecError: the certificate and the private key cannot be used.
    """

    def __init__(self, access: HttpAccess, now_s: Callable[[], float] = time.time) -> None:
        self._access, self._now_s = access, now_s
        self._files = [path for path in (access.cert_file, access.key_file) if path is not None]
        self._read = self._states()  # before they are read: what changes meanwhile is read again
        self.context = self._current = access.tls()
        if self.context is not None:
            # A context of its own for each pair: one that is given another certificate is half of both if that fails.
            self.context.sni_callback = self._show

    def renew(self) -> None:
        """Read the files again if they have changed; called once a second.

        Files that change are left alone for some seconds, until both of the pair are there. While they are gone, or do
        not fit together, the certificate of before is shown.
        """
        if self.context is None:
            return
        states = self._states()
        if None in states or states == self._read:
            return
        self._read = states
        try:
            self._current = self._access.tls()
        except SpecError as exc:
            _log.error("the certificate of before goes on: %s", exc.message)
        else:
            _log.info("the certificate in %s was read again", self._access.cert_file)

    def _states(self) -> list[tuple[int, ...] | None]:
        return [file_state(path, self._now_s()) for path in self._files]

    def _show(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Give a connection the newest certificate, whichever name its client asks for, or none."""
        assert self._current is not None
        connection.context = self._current
