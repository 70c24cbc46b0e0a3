# SPDX-License-Identifier: Apache-2.0
"""A generate request and its chunks, as typed data and as KServe messages; calls and errors are `clients.streaming`'s.

The one place that knows the tensor encoding. tritonclient has no types, so its messages are typed here.
"""

import struct
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ensemble_configs.render.tensors import BOOL, FP32, INT32, INT64, STRING, UINT64, Tensor, inputs_of, outputs_of
from trireme.base.errors import RequestError, ServerError

# tritonclient's generated messages: `Any` ends here and in the two functions that are given one.
InferRequest = Any
StreamResponse = Any

# Long enough for a full queue and a long prompt; nothing else notices a peer that vanished (TCP would take hours).
IDLE_TIMEOUT_S = 120.0

# The one model that serves a request on the release that it names.
PINNING_MODEL = "tensorrt_llm_bls"
MODEL_HEADER = "x-trireme-model"

_FORMATS = {BOOL: "<?", INT32: "<i", INT64: "<q", UINT64: "<Q", FP32: "<f"}
_FINAL = "triton_final_response"
_INDEX = "sequence_index"
_OUTPUTS = dict(outputs_of("ensemble"))
_COMMON = frozenset({
    "text_output", "finish_reason", "num_input_tokens", "num_output_tokens", "num_cached_tokens", "release",
    "token_ids",
})  # fmt: skip
_PERF = tuple(name for name in _OUTPUTS if name.startswith(("kv_cache", "total_", "acceptance")) or "_time_ns" in name)


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the text models by their tensor names; None is not sent, and the server's default holds.

    The prompt is `text_input`, or `messages` in OpenAI's form, which the server renders with the model's chat template.
    """

    text_input: str | None = None
    messages: list[dict[str, object]] | None = None
    tools: list[dict[str, object]] | None = None  # with messages; in OpenAI's form
    max_tokens: int
    decoder_text_input: str | None = None
    stream: bool | None = None
    exclude_input_in_output: bool | None = None
    stop_words: tuple[str, ...] | None = None
    end_id: int | None = None
    pad_id: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    num_return_sequences: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    bad_words: tuple[str, ...] | None = None
    embedding_bias_words: tuple[str, ...] | None = None
    embedding_bias_weights: tuple[float, ...] | None = None
    guided_decoding_guide_type: str | None = None
    guided_decoding_guide: str | None = None
    lora_task_id: int | None = None
    lora_name: str | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    num_draft_tokens: int | None = None  # for `tensorrt_llm_bls` alone
    return_log_probs: bool | None = None
    return_perf_metrics: bool | None = None
    return_context_logits: bool | None = None  # asked for and sent, and in no chunk here
    return_generation_logits: bool | None = None
    return_num_input_tokens: bool | None = None
    return_num_output_tokens: bool | None = None
    return_num_cached_tokens: bool | None = None
    return_finish_reason: bool | None = None
    return_release: bool | None = None
    return_token_ids: bool | None = None
    continued_ids: tuple[int, ...] | None = None  # with which the answer begins; they were made elsewhere
    # For a deployment with admission.
    priority: int | None = None  # 1 premium, 2 standard, 3 batch
    tenant: str | None = None
    deadline_ms: int | None = None  # to the last token
    queue_timeout_ms: int | None = None  # to the start

    @property
    def num_prompt_chars(self) -> int:
        """Return the length of the prompt in characters; of messages the length of their JSON."""
        return len(self.text_input or "") + (len(msgspec.json.encode(self.messages)) if self.messages else 0)


class GenerateChunk(msgspec.Struct, frozen=True, gc=False):
    """A response of a stream.

    Fields that were not asked for, or are not in this chunk, are None.
    """

    text: str  # what is new since the last chunk; may be empty; of beams the best's
    finish_reason: str | None
    num_input_tokens: int | None
    num_output_tokens: int | None  # of this chunk
    is_final: bool
    received_ns: int  # monotonic clock
    sequence_index: int | None = None  # where the request has several
    beams: tuple[str, ...] | None = None  # the text of each, the best first; None: there is one
    log_probs: tuple[float, ...] | None = None  # of this chunk's tokens
    cum_log_prob: float | None = None  # of all tokens up to here
    perf: dict[str, float] | None = None  # up to this chunk, by the outputs' names
    release: int | None = None  # that answers, with the first chunk
    num_cached_tokens: int | None = None  # of the prompt, with the last chunk, where the engine tells
    token_ids: tuple[int, ...] | None = None  # of this chunk
    has_moved: bool = False  # the answer was begun by another server than sent this chunk


_JSON = ("messages", "tools")  # lists that are sent as one text
_ROWS = tuple((name, row) for name, row in inputs_of("tensorrt_llm_bls") if name in GenerateRequest.__struct_fields__)


def model_metadata(model: str) -> tuple[tuple[str, str], ...]:
    """Return the model's name for a router in between, which does not look into messages."""
    return ((MODEL_HEADER, model),)


def encode_request(
    request: GenerateRequest,
    *,
    model: str,
    model_version: str,
    request_id: str,
    release: int | None = None,
    perf_outputs: Collection[str] | None = None,
) -> InferRequest:
    """Return the request as one message, shapes ``[1, n]``.

    Args:
        perf_outputs: the outputs of `return_perf_metrics` to name; None: all are asked for.

    Raises:
        RequestError: a value that its tensor cannot hold, by its name; a release for a model that would not look at it.
    """
    if release is not None and not model.endswith(PINNING_MODEL):  # behind a model's prefix, where there are several
        raise RequestError(f"release needs model {PINNING_MODEL!r}, got {model!r}", field="release", value=release)
    from tritonclient.grpc import service_pb2  # noqa: PLC0415  with numpy, a third of a second that OpenAI's API needs not

    message = service_pb2.ModelInferRequest(model_name=model, model_version=model_version, id=request_id)
    # A model may send its final flag in a response of its own; without this it would not reach us.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    if release is not None:
        message.parameters["release"].int64_param = release
    for name, row in _ROWS:
        value = getattr(request, name)
        if name in _JSON and value is not None:
            value = msgspec.json.encode(value).decode()
        values = value if isinstance(value, tuple | list) else (value,)
        if value is None or not values:
            continue
        message.inputs.add(name=name, datatype=_datatype(row), shape=[1, len(values)])
        message.raw_input_contents.append(_encode_values(name, row, values))
    if perf_outputs is not None:
        for name in _OUTPUTS:
            if name not in _PERF or name in perf_outputs:
                message.outputs.add(name=name)
    return message


def _datatype(row: Tensor) -> str:
    return "BYTES" if row.data_type == STRING else row.data_type.removeprefix("TYPE_")


def _encode_values(name: str, row: Tensor, values: Sequence[object]) -> bytes:
    try:
        return b"".join(_encode_value(row, value) for value in values)
    except UnicodeEncodeError as exc:
        raise RequestError(f"{name} must be text that UTF-8 can hold; it has a lone surrogate", field=name) from exc
    except (struct.error, OverflowError, TypeError) as exc:
        shown = values[0] if len(values) == 1 else values
        raise RequestError(f"{name} must fit {_datatype(row)}, got {shown!r}", field=name, value=shown) from exc


def _encode_value(row: Tensor, value: object) -> bytes:
    if row.data_type == STRING:
        if not isinstance(value, str):
            raise TypeError(value)
        data = value.encode()
        return struct.pack("<I", len(data)) + data
    if isinstance(value, bool) != (row.data_type == BOOL):  # struct takes True for 1, and anything for True
        raise TypeError(value)
    return struct.pack(_FORMATS[row.data_type], value)


def is_final_response(message: StreamResponse) -> bool:
    """Return whether nothing follows; a response that holds nothing else may say so."""
    return bool(message.infer_response.parameters[_FINAL].bool_param)


def decode_chunk(message: StreamResponse, *, is_final: bool, received_ns: int) -> GenerateChunk | None:
    """Return one response of a stream as a chunk; None where it has no outputs.

    Raises:
        ServerError: outputs that are not what the contract says.
    """
    chunks = decode_chunks(message, is_final=is_final, received_ns=received_ns)
    return chunks[0] if chunks else None


def decode_chunks(message: StreamResponse, *, is_final: bool, received_ns: int) -> list[GenerateChunk]:
    """Return a response as a chunk for each of its rows; none where it has no outputs.

    There are several in the one response of a unary deployment to a request with several sequences.

    Raises:
        ServerError: outputs that are not what the contract says.
    """
    response = message.infer_response
    if not response.outputs:
        return []
    names = [output.name for output in response.outputs]
    try:
        raw: dict[str, bytes] = dict(zip(names, response.raw_output_contents, strict=True))
        num_rows = response.outputs[names.index(_INDEX)].shape[0] if _INDEX in raw else 1
        if num_rows == 1:  # of every stream: this is the way of each token
            return [_chunk(raw, is_final=is_final, received_ns=received_ns)]
        rows = [_row(raw, index, num_rows) for index in range(num_rows)]
        ends = [is_final and row is rows[-1] for row in rows]
        return [_chunk(row, is_final=is_end, received_ns=received_ns) for row, is_end in zip(rows, ends, strict=True)]
    except ValueError as exc:
        raise ServerError(f"the server sent a response that is not of the serving contract: {exc}") from exc


def _row(raw: dict[str, bytes], index: int, num_rows: int) -> dict[str, bytes]:
    """Return the bytes of one row of every tensor; each has as many for every row, but for text."""
    row: dict[str, bytes] = {}
    for name, data in raw.items():
        is_text = name in _OUTPUTS and _OUTPUTS[name].data_type == STRING
        parts: Sequence[bytes] = _elements(data) if is_text else ()
        size = (len(parts) or len(data)) // num_rows
        part = slice(index * size, (index + 1) * size)
        row[name] = b"".join(parts[part]) if parts else data[part]
    return row


def _chunk(raw: dict[str, bytes], *, is_final: bool, received_ns: int) -> GenerateChunk:
    texts = _texts(raw["text_output"]) if "text_output" in raw else [""]
    rare = {} if raw.keys() <= _COMMON else _rare_fields(raw, len(texts))
    return GenerateChunk(
        text=texts[0],
        beams=tuple(texts) if len(texts) > 1 else None,
        finish_reason=_texts(raw["finish_reason"])[0] if "finish_reason" in raw else None,
        num_input_tokens=_count(raw.get("num_input_tokens")),
        num_output_tokens=_count(raw.get("num_output_tokens")),
        is_final=is_final,
        received_ns=received_ns,
        release=_count(raw.get("release")),
        num_cached_tokens=_count(raw.get("num_cached_tokens")),
        token_ids=_ids(raw.get("token_ids")),
        **rare,
    )


def _rare_fields(raw: dict[str, bytes], num_beams: int) -> dict[str, Any]:
    """Return the fields of a chunk that most streams do not ask for."""
    found: dict[str, Any] = {
        "sequence_index": _count(raw.get(_INDEX)),
        "log_probs": _of_best("output_log_probs", raw.get("output_log_probs"), num_beams),
        "cum_log_prob": _number("cum_log_probs", raw.get("cum_log_probs"), num_beams),
    }
    if not raw.keys().isdisjoint(_PERF):
        found["perf"] = {name: _one(name, raw[name]) for name in _PERF if name in raw}
    return found


def _texts(raw: bytes) -> list[str]:
    if len(raw) >= 4 and int.from_bytes(raw[:4], "little") == len(raw) - 4:  # the only one
        return [raw[4:].decode()]
    return [element[4:].decode() for element in _elements(raw)]


def _elements(raw: bytes) -> list[bytes]:
    """Return the texts in a tensor: each is its length in 4 bytes, and its bytes.

    An empty tensor is what a stub with numpy 2 sends.
    """
    elements, start = [], 0
    while start + 4 <= len(raw):
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        elements.append(raw[start:end])
        start = end
    if not elements or start != len(raw):
        raise ValueError(f"a text tensor of {len(raw)} bytes does not hold whole texts")
    return elements


def _ids(raw: bytes | None) -> tuple[int, ...] | None:
    if raw is None:
        return None
    if len(raw) % 4:
        raise ValueError(f"token_ids has {len(raw)} bytes")
    ids = struct.unpack(f"<{len(raw) // 4}i", raw)
    return tuple(token_id for token_id in ids if token_id >= 0) if min(ids, default=0) < 0 else ids  # -1 is padding


def _numbers(name: str, raw: bytes | None) -> tuple[float, ...] | None:
    if raw is None:
        return None
    try:
        return tuple(number for (number,) in struct.iter_unpack(_FORMATS[_OUTPUTS[name].data_type], raw))
    except struct.error as exc:
        raise ValueError(f"{name} has {len(raw)} bytes") from exc


def _of_best(name: str, raw: bytes | None, num_beams: int) -> tuple[float, ...] | None:
    numbers = _numbers(name, raw)
    return None if numbers is None else numbers[: len(numbers) // num_beams]


def _number(name: str, raw: bytes | None, num_beams: int) -> float | None:
    """Return the best beam's number, from a tensor with one number for each beam."""
    numbers = _numbers(name, raw)
    if numbers is None:
        return None
    if len(numbers) != num_beams:
        raise ValueError(f"{name} has {len(raw or b'')} bytes instead of one number for each beam")
    return numbers[0]


def _one(name: str, raw: bytes) -> float:
    numbers = _numbers(name, raw)
    if not numbers or len(numbers) > 1:
        raise ValueError(f"{name} has {len(raw)} bytes instead of one number")
    return numbers[0]


def _count(raw: bytes | None) -> int | None:
    if raw is None:
        return None
    if len(raw) != 4:
        raise ValueError(f"a count tensor has {len(raw)} bytes instead of 4")
    return int.from_bytes(raw, "little", signed=True)
