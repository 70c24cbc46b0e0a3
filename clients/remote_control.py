# SPDX-License-Identifier: Apache-2.0
"""The control of a server on another machine, over HTTPS; the same operations as on the same one (`server_control`)."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

import msgspec

from clients.access import Access
from clients.access_errors import refused_connection, refused_status
from clients.tls_context import http_call
from ensemble_configs.split.outcome_journal import Cursor, JournalLine, JournalPart
from trireme.base.errors import AccessDenied, RequestError, ServerError, ServingError, Unavailable, parse_token

_SILENCE_S = 20.0  # the server says every 5 s that it is alive
_MAX_LINE_BYTES = 64 << 20


class RemoteControl:
    """The control of one server.

    Args:
        url: address of the server's control, such as ``https://gpu-3.example:8004``.
        access: authorities, certificate and key.
        silence_s: how long the server may say nothing, not even that it is alive, in seconds.
        tell: is told what the server says meanwhile.

    Raises:
        RequestError: `url` is no address.
    """

    def __init__(
        self, url: str, access: Access, *, silence_s: float = _SILENCE_S, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        if not url.lower().startswith(("https://", "http://")):
            raise RequestError(
                f"the control of a server is an address such as https://gpu-3:8004, got {url!r}",
                field="server",
                value=url,
            )
        self._url, self._access, self._silence_s, self._tell = url.rstrip("/"), access, silence_s, tell

    def ask(self, operation: str, **question: object) -> Mapping[str, object]:
        """Do one thing, and wait until it is done.

        Raises:
            Unavailable: no server is there, or it went away meanwhile.
            AccessDenied: the server is not trusted, or does not accept the key.
            ServingError: what the server says against it.
        """
        request, context = http_call(
            f"{self._url}/control/{operation}", self._access, data=msgspec.json.encode(question)
        )
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=self._silence_s, context=context) as answer:
                return self._answer_in(answer)
        except urllib.error.HTTPError as exc:
            with exc:
                raise self._refused(exc) from exc
        except urllib.error.URLError as exc:
            denied = refused_connection(str(exc.reason), self._url, self._access)
            raise denied or self._away(f"does not answer: {exc.reason}", "unreachable") from exc
        except (OSError, http.client.HTTPException) as exc:
            # What was asked for may be done; every operation may be asked for again.
            raise self._away(f"went away before it was done: {exc}", "restarting") from exc

    def journal(self, name: str) -> "RemoteJournal":
        """Return the journal of outcomes that the server calls by a name."""
        return RemoteJournal(self, name)

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

    def _refused(self, exc: urllib.error.HTTPError) -> ServingError:
        said = exc.read(65_536).decode("utf-8", "replace")
        try:
            text = str(json.loads(said)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"HTTP {exc.code}: {said[:200]}"
        denied: AccessDenied | None = refused_status(exc.code, text, self._access)
        if denied is not None:
            return denied
        if exc.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return self._away(f"answers {text}", "unreachable")
        return parse_token(text) or ServerError(f"the server at {self._url} answers {text}")

    def _away(self, what: str, reason: str) -> Unavailable:
        return Unavailable(f"the server at {self._url} {what}", reason=reason)


class RemoteJournal:
    """The reader of a journal on another machine, as `ensemble_configs.split.outcome_journal.JournalReader`."""

    def __init__(self, control: RemoteControl, name: str) -> None:
        self._control, self._name = control, name

    def read(self, cursor: Cursor) -> JournalPart:
        """Return the whole lines behind a cursor; call it again until there are none.

        Raises:
            ServingError: as `RemoteControl.ask`.
        """
        found = self._control.ask("journal", name=self._name, cursor=dict(cursor))
        return JournalPart(
            msgspec.convert(found.get("lines"), list[JournalLine]), msgspec.convert(found.get("cursor"), dict[str, int])
        )


def _lines(answer: http.client.HTTPResponse) -> Iterator[object]:
    while line := answer.readline(_MAX_LINE_BYTES + 1):
        if not line.endswith(b"\n"):
            raise http.client.IncompleteRead(line[:80])
        try:
            yield json.loads(line)
        except ValueError as exc:
            raise http.client.HTTPException(f"what came is not JSON ({exc})") from exc
