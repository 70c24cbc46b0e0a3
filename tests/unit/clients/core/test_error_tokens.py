# SPDX-License-Identifier: Apache-2.0
"""Error texts become typed exceptions: ours by their token, Triton's and gRPC's by their words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.error_tokens import parse_error
from trireme.base.errors import (
    AccessDenied,
    BuildError,
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    SpecError,
    Unavailable,
)

CODES = [
    SpecError, BuildError, RequestError, AccessDenied, ServerError, Unavailable, RequestTimeout, RequestCancelled,
]  # fmt: skip
KEYS = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True).filter(lambda key: key not in {"self", "message"})
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
PREFIXES = ["", "in ensemble 'ensemble', ", "[StatusCode.INTERNAL] ", "[StatusCode.UNKNOWN] in ensemble 'e', "]


def is_read_as_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


@given(
    error=st.sampled_from(CODES),
    facts=st.dictionaries(KEYS, NUMBERS | st.text().filter(is_read_as_text), max_size=4),
    message=st.text(min_size=1).map(str.strip).filter(bool),
    prefix=st.sampled_from(PREFIXES),
)
def test_what_a_server_raises_is_what_the_client_gets(
    error: type[ServingError], facts: dict[str, object], message: str, prefix: str
) -> None:
    parsed = parse_error(prefix + str(error(message, **facts)))

    assert type(parsed) is error
    assert parsed.facts == facts
    assert parsed.message == message


@given(st.text())
def test_any_text_at_all_becomes_some_error(text: str) -> None:
    assert isinstance(parse_error(text), ServingError)
    assert isinstance(parse_error(f"[INVALID_ARG {text}"), ServingError)
    assert isinstance(parse_error(f"[INVALID_ARG key={text}] no"), ServingError)


def test_a_queue_full_error_keeps_its_own_type() -> None:
    parsed = parse_error(str(QueueFull("try again", reason="queue_full", retry_after_ms=250)))

    assert type(parsed) is QueueFull
    assert parsed.facts == {"reason": "queue_full", "retry_after_ms": 250}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("7", 7),
        ("-1.5", -1.5),
        ("1e-05", 1e-05),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("True", "True"),
        ('"7 up"', "7 up"),
        ('"say \\"hi\\" ]"', 'say "hi" ]'),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_value_is_a_number_only_where_it_is_written_as_one(written: str, value: object) -> None:
    assert parse_error(f"[INVALID_ARG value={written}] no").facts == {"value": value}


@pytest.mark.parametrize(
    "text",
    ["[StatusCode.INTERNAL] went wrong", "[request id: r1] went wrong", "in ensemble 'e', went wrong", "went wrong"],
)
def test_words_put_in_front_by_others_are_no_token_of_ours(text: str) -> None:
    parsed = parse_error(text)

    assert type(parsed) is ServerError
    assert parsed.message == "went wrong"


def test_an_empty_text_says_that_there_is_no_reason() -> None:
    assert parse_error("").message == "the server gave no reason"
    assert parse_error("[DEADLINE]").message == "the server gave no reason"


SHAPE = "unexpected shape for input 'max_tokens' for model 'ensemble'. Expected [-1,1], got [1,2]"
MISSING = (
    "expected number of inputs between 2 and 4 but got 1 inputs for model 'ensemble'. Got input(s) ['text_input'], "
    "but missing required input(s) ['max_tokens']. Please provide all required input(s)."
)
REFUSED = (
    "[StatusCode.UNAVAILABLE] failed to connect to all addresses; last error: UNKNOWN: "
    "ipv4:127.0.0.1:8001: Failed to connect to remote host: Connection refused"
)


# The texts are those of Triton 2.51 and grpcio 1.85, as seen.
@pytest.mark.parametrize(
    ("text", "error", "facts"),
    [
        ("Request for unknown model: 'nope' is not found", RequestError, {"field": "model", "value": "nope"}),
        (
            "Request for unknown model: 'ensemble' has no available versions",
            Unavailable,
            {"reason": "not_loaded", "model": "ensemble"},
        ),
        ("unexpected inference input 'x' for model 'ensemble'", RequestError, {"field": "x"}),
        (
            "[request id: <id_unknown>] inference input 'seed' data-type is 'INT64', but model 'e' expects 'UINT64'",
            RequestError,
            {"field": "seed"},
        ),
        (f"[request id: r1] {SHAPE}", RequestError, {"field": "max_tokens"}),
        (MISSING, RequestError, {"field": "max_tokens"}),
        ("input byte size mismatch for input 'seed' for model 'e'. Expected 8, got 4", RequestError, {"field": "seed"}),
        ("Stub process 'tensorrt_llm_0_0' is not healthy.", Unavailable, {"reason": "engine_dead"}),
        ("in ensemble 'ensemble', Exceeds maximum queue size", QueueFull, {"reason": "queue_full"}),
        (REFUSED, Unavailable, {"reason": "unreachable", "address": "127.0.0.1:8001"}),
        ("[StatusCode.DEADLINE_EXCEEDED] Deadline Exceeded", RequestTimeout, {}),
        ("[StatusCode.CANCELLED] CANCELLED", RequestCancelled, {}),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_text_of_triton_or_grpc_is_known_by_its_words(
    text: str, error: type[ServingError], facts: dict[str, object]
) -> None:
    parsed = parse_error(text)

    assert type(parsed) is error
    assert parsed.facts == facts


def test_a_refused_connection_names_the_address_and_the_next_step() -> None:
    assert parse_error(REFUSED, address="localhost:8001").message == (
        "no Triton answers on the gRPC address localhost:8001; is the server running? start it with `make serve`"
    )
    assert "gRPC address [::1]:8001;" in parse_error(REFUSED.replace("ipv4:127.0.0.1", "ipv6:%5B::1%5D")).message


@pytest.mark.parametrize(
    "text",
    ["Internal error from Core", "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"],
    ids=["could not be written any more", "ended by a proxy whose server died"],
)
def test_a_stream_that_ends_without_its_server_is_a_lost_connection(text: str) -> None:
    parsed = parse_error(f"[StatusCode.INTERNAL] {text}", address="localhost:8001")
    assert type(parsed) is Unavailable
    assert parsed.facts["reason"] == "connection_lost"
