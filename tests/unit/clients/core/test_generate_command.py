# SPDX-License-Identifier: Apache-2.0
"""The command `trireme generate` and the program around it: what is printed, when, and how it ends."""

import io
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from kserve_server import DIE, HANG, WAIT_S, KServeServer, Step, response, story

from trireme.base.errors import (
    BuildError,
    QueueFull,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    SpecError,
    Unavailable,
)
from trireme.commands import COMMANDS, exit_code, run_command

pytestmark = pytest.mark.slow

TRIREME = [sys.executable, "-m", "trireme"]


def generate(server: KServeServer, *args: str) -> int:
    """Run it in this process; returns the exit code."""
    with pytest.raises(SystemExit) as ended:
        run_command("generate", [*args, "--url", server.url])
    assert isinstance(ended.value.code, int)
    return ended.value.code


# A job in the background of a shell ignores Ctrl-C, and so would every process that these tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def start(server: KServeServer, *args: str) -> "subprocess.Popen[bytes]":
    """Run it in a process of its own."""
    command = [*TRIREME, "generate", *args, "--url", server.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def sent(server: KServeServer) -> dict[str, bytes]:
    """Return the tensors of the one request that came in."""
    (request,) = server.requests
    names = [tensor.name for tensor in request.inputs]
    return dict(zip(names, request.raw_input_contents, strict=True))


def test_the_text_is_printed_exactly_with_a_newline_at_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    with KServeServer(*story()) as server:
        assert generate(server, "hi") == 0

    assert capfd.readouterr() == ("Once upon ünd\n", "")


def test_a_release_goes_to_the_model_that_pins_it() -> None:
    with KServeServer(*story()) as server:
        assert generate(server, "hi", "--release", "2") == 0
    (request,) = server.requests
    assert request.model_name == "tensorrt_llm_bls"
    assert request.parameters["release"].int64_param == 2


def test_an_empty_stop_string_is_refused_before_the_server_is_asked(capfd: pytest.CaptureFixture[str]) -> None:
    with KServeServer(*story()) as server:
        assert generate(server, "hi", "--stop", "") == 2
    assert server.requests == []
    assert "--stop is empty" in capfd.readouterr().err


def test_text_appears_as_it_is_made() -> None:
    with KServeServer(response("Once"), HANG) as server, start(server, "hi") as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"Once"  # the server has not ended
        process.kill()


def test_json_prints_one_object_with_text_counts_and_latencies(capfd: pytest.CaptureFixture[str]) -> None:
    first, *rest = story()
    with KServeServer(0.05, first, 0.03, *rest) as server:
        assert generate(server, "hi", "--json") == 0

    report = json.loads(capfd.readouterr().out)
    ttft_ms, tpot_ms, e2e_ms = (report.pop(name) for name in ("ttft_ms", "tpot_ms", "e2e_ms"))
    assert report == {
        "text": "Once upon ünd",
        "finish_reason": "length",
        "num_input_tokens": 4,
        "num_output_tokens": 4,
    }
    assert 50 <= ttft_ms < e2e_ms
    assert e2e_ms >= 80  # a first token that is read late comes closer to the last
    assert tpot_ms == pytest.approx((e2e_ms - ttft_ms) / (4 - 1), abs=0.002)


def test_json_of_one_token_has_no_tpot(capfd: pytest.CaptureFixture[str]) -> None:
    with KServeServer(response("a", num_output_tokens=1, final=True)) as server:
        generate(server, "hi", "--json")

    report = json.loads(capfd.readouterr().out)
    assert report["tpot_ms"] is None
    assert report["num_output_tokens"] == 1
    assert report["num_input_tokens"] is None


def test_options_go_to_the_server_under_their_tensor_names(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--max-tokens", "7", "--top-k", "3", "--seed", "9", "--stop", "a", "--stop", "bc"]
    with KServeServer(*story()) as server:
        generate(server, "hi", *options)
    capfd.readouterr()

    always = dict.fromkeys(
        [
            "stream",
            "exclude_input_in_output",
            "return_num_input_tokens",
            "return_num_output_tokens",
            "return_finish_reason",
        ],
        b"\1",
    )
    assert sent(server) == {
        **always,
        "text_input": b"\2\0\0\0hi",
        "max_tokens": b"\7\0\0\0",
        "top_k": b"\3\0\0\0",
        "seed": b"\x09" + 7 * b"\0",
        "stop_words": b"\1\0\0\0a\2\0\0\0bc",
    }


ONE = b"\0\0\x80\x3f"  # 1.0 as float32


@pytest.mark.parametrize(
    ("options", "top_p"),
    [
        ([], None),
        (["--temperature", "0.5"], ONE),
        (["--temperature", "0.5", "--top-k", "3"], None),
        (["--temperature", "0.5", "--top-p", "1"], ONE),
    ],
    ids=["greedy", "temperature alone", "temperature and top-k", "temperature and top-p"],
)
def test_a_temperature_alone_samples_from_all_tokens(
    options: list[str], top_p: bytes | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with KServeServer(*story()) as server:
        generate(server, "hi", *options)
    capfd.readouterr()

    assert sent(server).get("top_p") == top_p


@pytest.mark.parametrize(
    ("given", "prompt"), [(b"a\nb", b"a\nb"), (b"a\nb\n", b"a\nb"), (b"a\n\n", b"a\n"), (b"", b"")]
)
def test_a_dash_reads_the_prompt_from_standard_input_less_one_newline(
    given: bytes, prompt: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    with KServeServer(*story()) as server:
        assert generate(server, "-") == 0
    capfd.readouterr()

    assert sent(server)["text_input"][4:] == prompt


def test_standard_input_that_is_not_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with KServeServer() as server:
        assert generate(server, "-") == 2

    assert capfd.readouterr().err == "trireme: the prompt on standard input must be UTF-8\n"


@pytest.mark.parametrize(
    ("script", "code", "out", "err"),
    [
        (["[INVALID_ARG field=top_p value=2] top_p must\nbe within 0 and 1"], 2, "", "top_p must be within 0 and 1"),
        ([response("Once"), "[UNAVAILABLE reason=draining] the server stops"], 1, "Once\n", "the server stops"),
        (["something broke"], 1, "", "something broke"),
    ],
    ids=["wrong request", "error after text", "unknown error"],
)
def test_an_error_is_one_line_on_stderr(
    script: list[Step], code: int, out: str, err: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with KServeServer(*script) as server:
        assert generate(server, "hi") == code

    assert capfd.readouterr() == (out, f"trireme: {err}\n")


def test_no_server_is_one_line_with_the_next_step_and_exit_2(capfd: pytest.CaptureFixture[str]) -> None:
    with KServeServer() as server:
        pass
    assert generate(server, "hi") == 2

    expected = f"trireme: no Triton answers on the gRPC address {server.url}; is the server running?"
    assert capfd.readouterr() == ("", f"{expected} start it with `make serve`\n")


def test_a_lost_connection_is_one_line_without_grpc_s_own_log() -> None:
    with KServeServer(response("Once"), DIE) as server, start(server, "hi") as process:
        out, err = process.communicate(timeout=WAIT_S)

    assert (process.returncode, out) == (1, b"Once\n")
    assert err.decode().startswith(f"trireme: the connection to {server.url} was lost")
    assert err.count(b"\n") == 1


def test_a_timeout_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    with KServeServer(HANG) as server:
        assert generate(server, "hi", "--timeout-s", "0.2") == 1
        assert server.was_cancelled.wait(WAIT_S)

    assert capfd.readouterr().err == "trireme: the request was not done within its timeout\n"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_ctrl_c_cancels_the_request_on_the_server_and_exits_130(options: list[str]) -> None:
    with KServeServer(response("Once"), HANG) as server, start(server, "hi", *options) as process:
        assert process.stdout is not None
        if options:
            wait_until_asked(server)
        else:
            process.stdout.read(4)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert server.was_cancelled.wait(WAIT_S)

    assert (process.returncode, err) == (130, b"")


def test_a_reader_that_goes_away_ends_it_quietly_and_cancels_the_request() -> None:
    script = [step for n in range(1000) for step in (response(f"{n}\n"), 0.01)]
    with KServeServer(*script) as server, start(server, "hi") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()  # as `| head -1` does
        assert process.wait(WAIT_S) == 141
        assert process.stderr.read() == b""
        assert server.was_cancelled.wait(WAIT_S)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_cut_text_is_said_on_a_terminal_only(
    *, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with KServeServer(*story()) as server:
        generate(server, "hi", "--max-tokens", "4")

    assert (b"cut at the token limit: --max-tokens 4" in capsysbinary.readouterr().err) == is_terminal


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    code = "import sys; from trireme.__main__ import main; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)

    help_text, _, modules = done.stdout.rstrip().rpartition("\n")
    assert all(f"  {name} " in help_text and command.help in help_text for name, command in COMMANDS.items())
    assert not {"tritonclient", "grpc", "numpy"} & set(modules.split())
    assert not {command.module for command in COMMANDS.values()} & set(modules.split())


def test_help_of_a_command_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("generate", ["--help"])

    assert 'trireme generate "Once upon a time" --max-tokens 64' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--version"], 0, "trireme 0."),
        ([], 0, "Usage: trireme COMMAND"),
        (["genrate"], 2, "no command 'genrate'; did you mean 'generate'?"),
        (["xyz"], 2, "no command 'xyz'; there are: serve, render"),
        (["generate"], 2, "Missing argument 'prompt'"),
    ],
)
def test_the_command_line_says_what_it_is_and_what_is_wrong(args: list[str], code: int, said: str) -> None:
    done = subprocess.run([*TRIREME, *args], capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert said in (done.stderr if code else done.stdout)


def test_a_command_whose_package_is_not_installed_says_which(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "generate", COMMANDS["generate"]._replace(module="not_installed"))
    with pytest.raises(SystemExit, match="1"):
        run_command("generate", [])

    assert (
        capsys.readouterr().err
        == "trireme: generate needs the Python package 'not_installed', which is not installed\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("x"), 2),
        (BuildError("x"), 2),
        (RequestError("x"), 2),
        (Unavailable("x", reason="unreachable"), 2),
        (Unavailable("x", reason="draining"), 1),
        (QueueFull("x"), 1),
        (RequestTimeout("x"), 1),
        (ServerError("x"), 1),
        (ServingError("x"), 1),
    ],
    ids=repr,
)
def test_the_exit_code_tells_whose_fault_it_is(error: ServingError, code: int) -> None:
    assert exit_code(error) == code


def wait_until_asked(server: KServeServer) -> Any:
    """Wait until a request came in, and return it."""
    for _ in range(1000):
        if server.requests:
            return server.requests[0]
        server.was_cancelled.wait(0.01)
    raise AssertionError("no request came")
