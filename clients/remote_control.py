# SPDX-License-Identifier: Apache-2.0
"""The control of a server on another machine, over HTTPS; the same operations as on the same one (`server_control`)."""

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from clients.access import Access, redacted
from clients.access_errors import refused_connection, refused_key
from clients.control_address import addresses_of, control_address, field_of
from clients.tls_context import tls_context
from ensemble_configs.split.outcome_journal import Cursor, JournalLine, JournalPart
from trireme.base.errors import (
    AccessDenied,
    RequestError,
    ServerError,
    ServingError,
    SpecError,
    Unavailable,
    parse_token,
)
from trireme.base.known_types import known

_CONNECT_S = 5.0
_SILENCE_S = 20.0  # the server says every 5 s that it is alive
_MAX_LINE_BYTES = 64 << 20
_KEY_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_HEADER_HINT = ", with --token-header where it is not `authorization`"


class RemoteControl:
    """The control of one server.

    Args:
        url: address of the server's control, such as ``https://gpu-3.example:8004``.
        access: authorities, certificate and key.
        address: where the server is, of the addresses that its name has; "": the name has one, or one of each family.
        silence_s: how long the server may say nothing, not even that it is alive, in seconds.
        tell: is told what the server says meanwhile.
        option: what names the address; the access's options begin like it, ``--server-token-file``.

    Attributes:
        controller: the process that asks, for a server that is steered by one (`clients.rollout.steering_lease`).

    Raises:
        RequestError: `url` is no address of a control.
    """

    def __init__(
        self,
        url: str,
        access: Access,
        *,
        address: str = "",
        silence_s: float = _SILENCE_S,
        tell: Callable[[str], None] = lambda _: None,
        option: str = "--server",
    ) -> None:
        self._address = control_address(url, option)
        self._host = address or self._address.host
        self._is_one_of_several = bool(address)
        self._access, self._silence_s, self._tell, self._option = access, silence_s, tell, option
        self._was_let_in = False
        self.controller = ""

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        """Do one thing, and wait until it is done.

        Raises:
            Unavailable: no server is there, or it went away meanwhile, or it accepts a key no more that it accepted.
            AccessDenied: the server is not trusted, or does not accept the key.
            SpecError: a file of the access cannot be used.
            ServingError: what the server says against it.
        """
        if self.controller:
            question["controller"] = self.controller
        try:
            found = self._ask(operation, msgspec.json.encode(question))
        except AccessDenied as exc:
            if not self._was_let_in:
                raise
            # Keys and certificates are replaced on one side first; a rollout waits, as for a server that starts anew.
            raise Unavailable(exc.message, reason="access") from exc
        self._was_let_in = True
        return found

    def journal(self, name: str) -> "RemoteJournal":
        """Return the journal of outcomes that the server calls by a name."""
        return RemoteJournal(self, name)

    def journal_name(self, answer: Mapping[str, object]) -> str:
        """Return what `journal` takes, of the answer of `split`; no two servers have journals of one name."""
        return str(answer["name"])

    def seen_from_here(self, status: Mapping[str, object]) -> Mapping[str, object]:
        """Return a server's status with the addresses by which this machine reaches it.

        A server names itself as on its own machine. From here it has the host of its control; where its gRPC endpoint
        has TLS, the authority that is trusted is the same.

        Raises:
            RequestError: gRPC asks for a client's certificate, which only commands on the server's machine have.
        """
        host = f"[{self._host}]" if ":" in self._host else self._host
        found = dict(status)
        if grpc := status.get("grpc"):
            found["grpc"] = f"{host}:{str(grpc).rpartition(':')[2]}"
        if metrics := status.get("metrics"):
            parts = urlsplit(str(metrics))
            found["metrics"] = parts._replace(netloc=f"{host}:{parts.port}").geturl()
        access: Any = status.get("grpc_access")
        if access:
            if access.get("cert_file"):
                raise RequestError(
                    "the server's gRPC endpoint asks for a client's certificate (triton.grpc_tls.client_ca_file), and "
                    f"only a rollout on the server's machine has one; run it there, with {self._option} FOLDER",
                    field=field_of(self._option),
                    value=self._address.url,
                )
            named = access.get("server_name") or (self._address.host if self._host != self._address.host else "")
            own = {"server_name": named} if named else {}
            trusted = {"ca_file": self._access.ca_file} if self._access.ca_file else {}
            found["grpc_access"] = {"is_tls": True, **trusted, **own}
        return found

    def _ask(self, operation: str, body: bytes) -> Mapping[str, object]:
        self._check_is_one()
        with contextlib.closing(self._connection()) as connection:
            try:
                connection.connect()
                connection.sock.settimeout(self._silence_s)
            except (OSError, ValueError) as exc:
                denied = refused_connection(str(exc), self._address.named, self._access)
                if denied is not None:
                    raise AccessDenied(self._named_here(denied.message), **denied.facts) from exc
                raise self._away(f"does not answer: {exc}", "unreachable") from exc
            try:
                connection.request("POST", f"/control/{operation}", body, self._headers())
                answer = connection.getresponse()
                if answer.status != HTTPStatus.OK:
                    raise self._refused(answer)
                return self._answer_in(answer)
            except (OSError, http.client.HTTPException) as exc:
                # What was asked for may be done; every operation may be asked for again.
                raise self._away(f"went away before it was done: {exc}", "restarting") from exc

    def _check_is_one(self) -> None:
        """Refuse a name that has got several addresses: a call would reach either server."""
        if self._is_one_of_several:
            return
        try:
            found = addresses_of(self._address.host, self._address.port)
        except Unavailable:  # whoever connects says why
            return
        if len(found) > 1:
            what = f"has {len(found)} addresses now ({', '.join(found)}), and the rollout began with one"
            raise self._away(f"{what}; take all but one away", "replicas")

    def _connection(self) -> http.client.HTTPConnection:
        host, port, is_tls = self._address
        if not is_tls:
            return http.client.HTTPConnection(self._host, port, timeout=_CONNECT_S)
        try:
            context = tls_context(self._access)
        except SpecError as exc:
            raise self._unusable(exc) from exc
        return _Connection(host, port, self._host, context)

    def _headers(self) -> dict[str, str]:
        try:
            return {"Content-Type": "application/json", **dict(self._access.headers())}
        except SpecError as exc:
            raise self._unusable(exc) from exc

    def _unusable(self, error: SpecError) -> ServingError:
        """Return the error of a file that cannot be used; one that could be used may be on its way to be replaced."""
        text = self._named_here(error.message)
        return Unavailable(text, reason="access") if self._was_let_in else SpecError(text, **error.facts)

    def _answer_in(self, answer: http.client.HTTPResponse) -> Mapping[str, object]:
        for line in _lines(answer):
            match line:
                case {"say": str(text)}:
                    self._tell(text)
                case {"alive": _}:
                    continue
                case {"error": str(text)}:
                    raise parse_token(text) or ServerError(text)
                case {"done": dict(done)}:
                    return done
                case other:
                    raise self._away(f"sent {str(other)[:80]}, which is no answer", "restarting")
        raise self._away("went away before it was done", "restarting")

    def _refused(self, answer: http.client.HTTPResponse) -> ServingError:
        said = answer.read(65_536).decode("utf-8", "replace")
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            where = redacted(str(answer.getheader("Location", "another address")))[:200]
            return ServerError(
                f"{self._address.url} sends its callers to {where}, and a key is sent to no address that was not "
                f"named; name the control itself with {self._option}"
            )
        try:
            text = str(json.loads(said)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"HTTP {answer.status}: {said[:200]}"
        error = parse_token(text)
        if answer.status in _KEY_STATUSES:
            denied = refused_key(text if error is None else error.message, self._address.url, self._access)
            return AccessDenied(self._named_here(denied.message), **denied.facts)
        if error is None and answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # a proxy's
            return self._away(f"answers {text}", "unreachable")
        return error or ServerError(f"the server at {self._address.url} answers {text}")

    def _named_here(self, text: str) -> str:
        """Return a text with the options of a rollout for the access to its server."""
        token = f"{self._option}-token-file"
        names = {"--token-file or --token-env": token, "--token-file": token, "--ca-file": f"{self._option}-ca-file"}
        for option, here in (names | {"--url": self._option, _HEADER_HINT: ""}).items():
            text = text.replace(option, here)
        return text

    def _away(self, what: str, reason: str) -> Unavailable:
        where = f" ({self._host})" if self._is_one_of_several else ""
        return Unavailable(f"the server at {self._address.url}{where} {what}", reason=reason)


class _Connection(http.client.HTTPSConnection):
    """A connection to one of the addresses of a name; the certificate is for the name."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=_CONNECT_S, context=context)
        self._at, self._tls = address, context

    def connect(self) -> None:
        """Connect to the address."""
        self.sock = socket.create_connection((self._at, self.port), _CONNECT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


class RemoteJournal:
    """The reader of a journal on another machine, as `ensemble_configs.split.outcome_journal.JournalReader`."""

    def __init__(self, control: RemoteControl, name: str) -> None:
        self._control, self._name = control, name

    def read(self, cursor: Cursor) -> JournalPart:
        """Return the whole lines behind a cursor; call it again until there are none.

        Raises:
            ServingError: as `RemoteControl.ask`; or what comes is no part of a journal.
        """
        found = self._control.ask("journal", name=self._name, cursor=dict(cursor))
        try:
            return JournalPart(
                msgspec.convert(found.get("lines"), known(list[JournalLine])),
                msgspec.convert(found.get("cursor"), dict[str, int]),
            )
        except msgspec.ValidationError as exc:
            raise ServerError(f"the server's journal {self._name} cannot be read: {exc}") from exc


def _lines(answer: http.client.HTTPResponse) -> Iterator[object]:
    while line := answer.readline(_MAX_LINE_BYTES + 1):
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line[:80])
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise http.client.HTTPException(f"what came is not JSON ({exc})") from exc
