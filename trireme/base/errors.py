# SPDX-License-Identifier: Apache-2.0
"""The one tree of errors, and the text form in which they cross Triton.

    ServingError                    INTERNAL      (exit 1)
    ├── SpecError                   INVALID_SPEC  a deployment or file is wrong (exit 2)
    ├── BuildError                  BUILD         an engine could not be built (exit 2)
    ├── RequestError                INVALID_ARG   this request is wrong; the next may be right
    ├── AccessDenied                ACCESS_DENIED certificates or a key are not accepted (exit 2)
    └── ServerError                 INTERNAL
        ├── Unavailable             UNAVAILABLE   try again, or elsewhere
        │   └── QueueFull           UNAVAILABLE   with retry_after_ms
        ├── RequestTimeout          DEADLINE      the deadline passed
        └── RequestCancelled        CANCELLED     somebody stopped it

Triton carries only text with an error of a stream, and an ensemble puts its own words in front of it. So the text of
every error holds one machine-readable token, ``[CODE key=value ...]``, wherever it stands in the text.
`parse_token` reads it; `clients.error_tokens` knows the texts of Triton and gRPC beside.
"""

import json
import re

Fact = int | float | str

_PLAIN_VALUE = re.compile(r"[^\s\[\]\"=]+")
_ANY_VALUE = rf'{_PLAIN_VALUE.pattern}|"(?:[^"\\]|\\.)*"'
_FACT = re.compile(rf" (?P<key>\w+)=(?P<value>{_ANY_VALUE})")
# As Python writes numbers; "007", "nan" and "1_000" stay text. Bounded, as int() of endless digits raises.
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,39})")
_FLOAT = re.compile(rf"{_INT.pattern}(?:\.[0-9]{{1,40}})?(?:e[+-]?[0-9]{{1,3}})?")


class ServingError(Exception):
    """An error with a code, facts for a machine and a sentence for a person.

    Args:
        message: what is wrong, what is allowed and the next step.
        facts: what a program needs to react, e.g. ``field="top_p", value=1.5``; None values are left out.
    """

    code = "INTERNAL"

    def __init__(self, message: str, **facts: object) -> None:
        self.message = message
        self.facts = {key: value for key, value in facts.items() if value is not None}
        super().__init__(f"{format_token(self.code, self.facts)} {message}")


class SpecError(ServingError):
    """A deployment, a model folder or a machine that is not what it should be; nothing was started."""

    code = "INVALID_SPEC"


class BuildError(ServingError):
    """An error of a build: an engine could not be made."""

    code = "BUILD"


class RequestError(ServingError):
    """A request for what is not allowed; it fails alone."""

    code = "INVALID_ARG"


class AccessDenied(ServingError):
    """A connection whose certificates or key are not accepted, by the one side or the other; facts hold `reason`.

    Nothing but other certificates, another key or another address helps: what is asked again is refused again.
    """

    code = "ACCESS_DENIED"


class ServerError(ServingError):
    """A failure of the server to do what a correct request asked for."""


class Unavailable(ServerError):
    """A refusal of requests for now; facts hold `reason` and, where known, `retry_after_ms`."""

    code = "UNAVAILABLE"


class QueueFull(Unavailable):
    """A refusal because the queue is full; facts hold `retry_after_ms`."""


class RequestTimeout(ServerError):
    """A deadline that passed before the request was done."""

    code = "DEADLINE"


class RequestCancelled(ServerError):
    """A request that was stopped before it was done."""

    code = "CANCELLED"


def format_token(code: str, facts: dict[str, object]) -> str:
    """Return ``[CODE key=value ...]``.

    A value with white space, brackets, quotes or ``=`` is written as a JSON string.
    """
    return "[" + " ".join([code, *(f"{key}={_format_value(value)}" for key, value in facts.items())]) + "]"


def _format_value(value: object) -> str:
    text = str(value)
    return text if _PLAIN_VALUE.fullmatch(text) else json.dumps(text)


# INTERNAL from a server is a ServerError: who was told the text cannot know more.
_BY_CODE: dict[str, type[ServingError]] = {
    error.code: error
    for error in (
        *(SpecError, BuildError, RequestError, AccessDenied),
        *(ServerError, Unavailable, RequestTimeout, RequestCancelled),
    )
}
_TOKEN = re.compile(rf"\[(?P<code>{'|'.join(_BY_CODE)})(?P<facts>(?: \w+=(?:{_ANY_VALUE}))*)\]")


def parse_token(text: str) -> ServingError | None:
    """Return the error whose token stands anywhere in a text, with what follows it as the message; None: there is none.

    Never fails.
    """
    token = _TOKEN.search(text)
    if token is None:
        return None
    facts = _parse_facts(token["facts"])
    error = _BY_CODE[token["code"]]
    if error is Unavailable and facts.get("reason") == "queue_full":
        error = QueueFull
    return error(text[token.end() :].strip() or "the server gave no reason", **facts)


def _parse_facts(text: str) -> dict[str, Fact]:
    # A fact named as a parameter of ServingError cannot be ours: its constructor could not have taken it.
    pairs = ((match["key"], match["value"]) for match in _FACT.finditer(text))
    return {key: _parse_value(value) for key, value in pairs if key not in {"self", "message"}}


def _parse_value(text: str) -> Fact:
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:  # not written by us: kept as it is
            return text
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
