# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP endpoint as the parent asks it: health, the index of models, and loads, which want the control key."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from trireme.base.errors import ServerError, Unavailable

CONTROL_KEY_HEADER = "trireme-control-key"
_INDEX_TIMEOUT_S = 10


class CannotLoad(ServerError):
    """The error of a load call that Triton refused; the models that it served before are still served."""


class TritonApi:
    """The endpoint of one server.

    Args:
        base_url: the server's address.
        control_key: the key that its restricted APIs ask for.
    """

    def __init__(self, base_url: str, control_key: str) -> None:
        self._base_url = base_url
        self._control_key = control_key

    def says_yes(self, path: str) -> bool:
        """Return whether the server has 200 for a path; False where it does not answer within 2 s."""
        try:
            with urllib.request.urlopen(f"{self._base_url}{path}", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def answers(self, *, timeout_s: float) -> bool:
        """Return whether the server says anything at all in time, ready or not."""
        try:
            urllib.request.urlopen(f"{self._base_url}/v2/health/live", timeout=timeout_s).close()
        except urllib.error.HTTPError as exc:
            exc.close()
        except OSError:
            return False
        return True

    def index(self) -> list[dict[str, str]]:
        """Return what the server tells of each version of each model: name, version, state, reason.

        Raises:
            HTTPError: the server refuses.
            Unavailable: the server does not answer.
        """
        listed: list[dict[str, str]] = json.loads(self._ask("index", {}, timeout_s=_INDEX_TIMEOUT_S))
        return listed

    def control(self, operation: str, model: str, parameters: Mapping[str, str], *, timeout_s: float) -> None:
        """Have the server load or unload a model.

        Raises:
            CannotLoad: the server refuses; the text is Triton's.
            Unavailable: the server does not answer, or not in time.
        """
        try:
            self._ask(f"models/{model}/{operation}", {"parameters": parameters}, timeout_s=timeout_s)
        except urllib.error.HTTPError as exc:
            with exc:
                raise CannotLoad(f"Triton cannot {operation} {model}: {_error_text(exc.read())}") from exc

    def _ask(self, path: str, question: Mapping[str, object], *, timeout_s: float) -> bytes:
        """Return the body of an answer. Raises: HTTPError: Triton refuses. Unavailable: Triton does not answer."""
        request = urllib.request.Request(
            f"{self._base_url}/v2/repository/{path}",
            data=json.dumps(question).encode(),
            headers={CONTROL_KEY_HEADER: self._control_key},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return bytes(response.read())
        except urllib.error.HTTPError:
            raise
        except OSError as exc:
            raise Unavailable(f"tritonserver does not answer: {exc}", reason="no_answer") from exc


def _error_text(body: bytes) -> str:
    """Return the text of an error of Triton's."""
    try:
        return " ".join(str(json.loads(body)["error"]).split())
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no reason given"


def reachable(host: str) -> str:
    """Return a listening address as it stands in a URL of this machine."""
    there = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{there}]" if ":" in there else there
