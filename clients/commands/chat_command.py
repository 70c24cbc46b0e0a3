# SPDX-License-Identifier: Apache-2.0
"""The command `trireme chat`: a conversation with a running server in the terminal."""

import contextlib
import sys
import time
from functools import partial
from typing import Annotated

import msgspec
import typer

from clients.access import Access
from clients.access_options import with_access
from clients.commands.shown_text import streamed_or_whole, write
from clients.infer_messages import GenerateRequest
from clients.streaming import TritonClient
from ensemble_configs.render.tensors import AS_MANY_AS_FIT
from trireme.base.errors import AccessDenied, ServingError

_NEW = "/new"
_HELP = f"Ctrl-C stops an answer, {_NEW} begins another conversation, Ctrl-D ends."


class _Conversation:
    """The messages of a conversation, and the asking of the next answer."""

    def __init__(self, client: TritonClient, base: GenerateRequest, *, model: str, system: str | None) -> None:
        self._client, self._base, self._model = client, base, model
        self._begin = [] if system is None else [_message("system", system)]
        self._messages = list(self._begin)

    def begin_anew(self) -> None:
        """Forget what was said."""
        self._messages = list(self._begin)

    def answer(self, text: str) -> str | None:
        """Show the answer to a message; what is stopped by Ctrl-C stays as far as it came.

        Returns:
            What is to be said of its times; None: it was stopped.

        Raises:
            ServingError: the server refuses or fails; the message is forgotten.
        """
        messages = [*self._messages, _message("user", text)]
        request = msgspec.structs.replace(self._base, messages=messages)
        said, num_tokens, first_s, begun_s = "", 0, 0.0, time.monotonic()
        ask = partial(self._client.generate, model=self._model)
        try:
            with contextlib.closing(streamed_or_whole(ask, request)) as chunks:
                for chunk in chunks:
                    said += chunk.text
                    num_tokens += chunk.num_output_tokens or 0
                    first_s = first_s or time.monotonic()
                    write(chunk.text)
        except KeyboardInterrupt:
            return None
        finally:
            write("\n" if said else "")
            if said:
                self._messages = [*messages, _message("assistant", said)]
        return _times(num_tokens, ttft_s=first_s - begun_s, later_s=time.monotonic() - first_s)


@with_access
def chat(
    *,
    url: Annotated[str, typer.Option(help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS.")] = (
        "localhost:8001"
    ),
    model: Annotated[str, typer.Option(help="The model to ask.")] = "ensemble",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer.", min=1, show_default="as many as fit")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token.", min=0)] = 0.7,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", min=0)] = None,
    adapter: Annotated[str | None, typer.Option(help="Answer with this LoRA adapter of the deployment.")] = None,
    access: Access,
) -> None:
    """Talk with a running server: each line is a message, each answer is shown as it is made.

    Ctrl-C stops an answer, /new begins another conversation, Ctrl-D ends. Without a terminal every line of standard
    input is a message, and the answers alone are printed.

    \b
    Examples:
      trireme chat
      trireme chat --system "Answer in one sentence." --temperature 0
      printf 'What is the capital of Peru?\\nAnd of Italy?\\n' | trireme chat --temperature 0

    \b
    Exit codes: 0 the end of the input; 1 the server failed; 2 the address or the key is wrong, or no server answers.
    """
    is_sampling = temperature > 0
    base = GenerateRequest(
        max_tokens=max_tokens or AS_MANY_AS_FIT,
        stream=True,
        exclude_input_in_output=True,
        temperature=temperature if is_sampling else None,
        top_p=1.0 if is_sampling else None,  # the contract's default is greedy, whatever the temperature
        seed=seed,
        lora_name=adapter,
        return_num_output_tokens=True,
    )
    is_terminal = sys.stdin.isatty()
    with TritonClient(url, access=access) as client:
        conversation = _Conversation(client, base, model=model, system=system)
        if is_terminal:
            typer.secho(_HELP, err=True, dim=True)
        while (line := _next_line(is_terminal=is_terminal)) is not None:
            if line == _NEW:
                conversation.begin_anew()
            elif line:
                _answer(conversation, line, is_terminal=is_terminal)


def _answer(conversation: _Conversation, line: str, *, is_terminal: bool) -> None:
    try:
        times = conversation.answer(line)
    except ServingError as exc:
        if not is_terminal or isinstance(exc, AccessDenied):
            raise
        typer.secho(exc.message, err=True, fg="red")  # the next message may find its answer
        return
    if is_terminal and times is not None:
        typer.secho(times, err=True, dim=True)


def _next_line(*, is_terminal: bool) -> str | None:
    """Return the next message; None: there is none."""
    try:
        return input("> " if is_terminal else "").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:  # as in a shell: the line is dropped
        write("\n")
        return ""


def _message(role: str, content: str) -> dict[str, object]:
    return {"role": role, "content": content}


def _times(num_tokens: int, *, ttft_s: float, later_s: float) -> str:
    told = f"TTFT {1000 * ttft_s:.0f} ms, {num_tokens} tokens"
    return told + (f", {(num_tokens - 1) / later_s:.0f} tokens/s" if num_tokens > 1 and later_s > 0 else "")
