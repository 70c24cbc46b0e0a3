# SPDX-License-Identifier: Apache-2.0
"""A request to the engine step, from named arrays to typed values; unsupported and out-of-range values are refused.

The rows of `ensemble_configs.render.tensors` drive the reading: a tensor is read into the field that its row names, of
`SamplingParams`, of `ResponseOptions` below, or of `Scheduling`.
"""

from collections.abc import Mapping
from typing import Annotated, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from ensemble_configs.render.tensors import AS_MANY_AS_FIT, BLS_INPUTS, STRING, UINT8, Tensor, inputs_of, named_at
from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.engines.seam.continuation import first_inexact
from serving.engines.seam.packed_array import PackedArray
from serving.engines.seam.request_limits import unsupported_error
from serving.engines.seam.scheduling import Scheduling, tenant_name
from serving.requests.embedding_bias import sparse_bias
from serving.requests.guided_decoding import check_guide, guide_text
from serving.requests.list_sizes import check_list_size
from serving.requests.model_input_checks import check_model_inputs, num_virtual_tokens
from serving.requests.number_ranges import check_range, out_of_range, ranges_of
from serving.requests.stream_state import KEYS_PER_REQUEST
from serving.requests.word_lists import unpack_words
from trireme.base.errors import RequestError
from trireme.base.known_types import known

_ROWS: dict[str, Tensor] = dict(inputs_of("tensorrt_llm") + named_at("tensorrt_llm_bls", BLS_INPUTS))
_MAX_LOGITS_BYTES = 1 << 28  # of one response
_SAMPLING_FIELDS = frozenset(SamplingParams.__struct_fields__)
_SCHEDULING_FIELDS = frozenset(Scheduling.__struct_fields__)


class ResponseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a request for the serving around the engine."""

    input_ids: list[int] = []
    input_length: int | None = None
    pad_id: int | None = None
    is_streaming: bool = False
    exclude_input_in_output: bool | None = None  # None: the deployment's default
    return_num_input_tokens: bool = False
    return_num_output_tokens: bool = False
    return_num_cached_tokens: bool = False
    return_finish_reason: bool = False
    return_release: bool = False
    return_token_ids: bool = False
    continued_ids: list[int] = []  # with which the answer begins; the engine goes on behind them
    return_perf_metrics: bool = False
    # None: one, or all beams of a beam search.
    num_return_sequences: Annotated[int, msgspec.Meta(ge=1, le=KEYS_PER_REQUEST)] | None = None
    stop: bool = False
    stop_words_list: list[list[int]] | None = None  # [2, n]: flat ids; cumulative offsets, padded with -1
    stream_context: bytes | None = None


class DecodedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request to the engine step."""

    sampling: SamplingParams
    options: ResponseOptions
    scheduling: Scheduling = Scheduling()


class RequestDecoder:
    """The decoder of arrays into requests for one engine, within the engine's limits."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info

    def decode(
        self, tensors: Mapping[str, npt.NDArray[np.generic]], *, is_context_only: bool = False
    ) -> DecodedRequest:
        """Check and convert a request of one prompt, or one prompt of a batch.

        Args:
            tensors: tensors by the names of `tensorrt_llm`'s inputs, and of the inputs that only `tensorrt_llm_bls`
                has; a scalar is ``[1]`` (reshaped), every other tensor ``[1, *dims]``.
            is_context_only: the request is for the prefill server of disaggregated serving.

        Raises:
            RequestError: a value is refused; the error names the field, its value and the allowed values.
        """
        if "stop" in tensors and _value("stop", _ROWS["stop"], tensors["stop"], self._info.vocab_size):
            return _stop_request(tensors)
        sampling: dict[str, object] = {}
        options: dict[str, object] = {}
        scheduling: dict[str, object] = {}
        for name, array in tensors.items():
            row = _ROWS[name]
            if row.why_not:
                raise _refused_by_all(name, row, self._info)
            target = sampling if row.field in _SAMPLING_FIELDS else options
            if row.field in _SCHEDULING_FIELDS:
                target = scheduling
            check_list_size(name, row.field, _list_size(row, array), max_seq_len=self._info.max_seq_len)
            value = _value(name, row, array, self._info.vocab_size)
            if (row.field, value) != ("max_tokens", AS_MANY_AS_FIT):
                check_range(row.field, value, _RANGES)
            if row.field in target and target[row.field] != value:
                raise RequestError(
                    f"{name}={value} contradicts the same setting under its other name ({target[row.field]}); send one",
                    field=name,
                    value=value,
                )
            target[row.field] = value
        if "max_tokens" not in sampling:  # Triton counts inputs, and an optional one makes up for it
            raise RequestError("request_output_len is missing; it is required", field="request_output_len")
        responses = msgspec.convert(options, known(ResponseOptions))
        if sampling["max_tokens"] == AS_MANY_AS_FIT:  # at least one, so that it is the prompt which is refused
            sampling["max_tokens"] = max(1, self._info.max_seq_len - len(responses.input_ids))
        if is_context_only:
            sampling["is_context_only"] = True
        names = _ENSEMBLE_NAMES if "stream_context" in tensors else _CLIENT_NAMES
        request = DecodedRequest(
            sampling=self._sampling(sampling, names),
            options=responses,
            scheduling=self._scheduling(scheduling),
        )
        _check_beams(request)
        _check_logits(request, self._info.vocab_size)
        self._check_lengths(request)
        if responses.continued_ids:
            self._check_continued(request, names)
        return request

    def _sampling(self, values: dict[str, object], names: Mapping[str, str]) -> SamplingParams:
        if values.get("top_p_reset_id") == -1:
            del values["top_p_reset_id"]
        for field in (name for name in SamplingParams.__struct_fields__ if name in values):  # not as they were sent
            value = values[field]
            if field not in self._info.supported and value != _DEFAULTS.get(field):
                raise unsupported_error(field, value, self._info, name=names.get(field))
        params = SamplingParams(**values)  # type: ignore[arg-type]
        for field in ("end_id", "top_p_reset_id"):
            token_id = values.get(field)
            if isinstance(token_id, int) and not -1 <= token_id < self._info.vocab_size:
                raise out_of_range(field, token_id, f"-1 (none) to {self._info.vocab_size - 1}")
        check_model_inputs(params, vocab_size=self._info.vocab_size)
        check_guide(params)
        return params

    def _scheduling(self, values: dict[str, object]) -> Scheduling:
        for field, value in values.items():
            if not self._info.is_admitting:
                raise RequestError(
                    f"{field} needs admission, which this deployment does not have; name `admission` in it, or leave "
                    f"{field} out",
                    field=field,
                    value=value,
                )
        return Scheduling(**values)  # type: ignore[arg-type]

    def _check_lengths(self, request: DecodedRequest) -> None:
        ids, declared = request.options.input_ids, request.options.input_length
        if not ids:
            raise RequestError("input_ids is empty; send at least one token", field="input_ids")
        if declared is not None and declared != len(ids):
            raise out_of_range("input_lengths", declared, f"{len(ids)}, the number of input_ids")
        _check_vocabulary("input_ids", ids, self._info.vocab_size + num_virtual_tokens(request.sampling))
        limit = self._info.max_seq_len
        if request.sampling.max_tokens > limit - len(ids):
            raise out_of_range(
                "max_tokens",
                request.sampling.max_tokens,
                f"1 to {limit - len(ids)} for this prompt ({limit} tokens of prompt and output together)",
            )

    def _check_continued(self, request: DecodedRequest, names: Mapping[str, str]) -> None:
        """Refuse an answer that would not go on as it would have, and one that is at its end."""
        sampling, ids = request.sampling, request.options.continued_ids
        _check_vocabulary("continued_ids", ids, self._info.vocab_size)
        field = first_inexact(sampling) or ("return_log_probs" if sampling.return_log_probs else None)
        if field is None and (request.options.num_return_sequences or 1) > 1:
            field = "num_return_sequences"
        if field is not None:
            name = names.get(field, field)
            raise RequestError(
                f"{name} does not go with continued_ids: what it says of tokens that were made elsewhere is not known "
                "here; leave either out",
                field=name,
            )
        if len(ids) >= sampling.max_tokens:
            raise out_of_range(
                "continued_ids",
                f"{len(ids)} ids",
                f"fewer than max_tokens ({sampling.max_tokens}), of which these ids are a part",
            )


def _check_vocabulary(name: str, ids: list[int], num_ids: int) -> None:
    if min(ids) < 0 or max(ids) >= num_ids:
        bad = next(i for i in ids if not 0 <= i < num_ids)
        raise out_of_range(name, bad, f"0 to {num_ids - 1}, the model's vocabulary")


def _stop_request(tensors: Mapping[str, npt.NDArray[np.generic]]) -> DecodedRequest:
    """Return a stop request, read from the stream's name alone.

    Upstream's client fills every other tensor with zeros and memory that it has not initialized.
    """
    context = tensors.get("stream_context")
    return DecodedRequest(
        sampling=SamplingParams(max_tokens=1),
        options=ResponseOptions(stop=True, stream_context=None if context is None else context[0].tobytes()),
    )


def _list_size(row: Tensor, array: npt.NDArray[np.generic]) -> int:
    """Return the number of values in one row of a batch; a pair or a triple counts as one value."""
    if array.ndim < 2 or not row.dims:
        return 1
    return int(array.shape[1] if row.dims[-1] != -1 else array.shape[-1])


def _value(name: str, row: Tensor, array: npt.NDArray[np.generic], vocab_size: int) -> object:
    if row.data_type != STRING and (row.is_scalar or row.dims == (1,)):
        return _scalar(array)
    return _item(name, row, array[0], vocab_size)


def _item(name: str, row: Tensor, item: npt.NDArray[np.generic], vocab_size: int) -> object:
    match row.field:
        case "bad_words":
            return unpack_words(item, "bad_words", vocab_size=vocab_size)
        case "embedding_bias":
            return sparse_bias(item, vocab_size=vocab_size) or None
        case field if row.data_type == STRING and row.dims == (1,):
            text = np.ravel(item)[0]
            return tenant_name(text) if field == "tenant" else guide_text(text, name)
        case field if field in _PACKED:
            return _packed(item, name)
        case _ if row.data_type == UINT8:
            return item.tobytes()
        case field:
            return tuple(item.tolist()) if field in _SAMPLING_FIELDS else item.tolist()


def _packed(item: npt.NDArray[np.generic], name: str) -> PackedArray:
    if not np.isfinite(item).all():
        raise RequestError(f"{name} must be finite numbers", field=name)
    return PackedArray.of(item)


def _scalar(array: npt.NDArray[np.generic]) -> object:
    scalar = array.reshape(-1)[0]
    # By way of its shortest text: 0.1 sent as FP32 is 0.1 again, not 0.10000000149.
    return float(str(scalar)) if scalar.dtype == np.float32 else scalar.item()


# For the documents: what goes for every engine.
CONDITIONS = {
    "beam_width": "without `stream`, `top_k` and `top_p`",
    **dict.fromkeys(Scheduling.__struct_fields__, "with `admission`"),
}


def _check_logits(request: DecodedRequest, vocab_size: int) -> None:
    """Refuse logits that are too large for one response: with a vocabulary of 100,000, a megabyte is two tokens."""
    sampling, num_rows = request.sampling, 0
    if sampling.return_context_logits:
        num_rows += len(request.options.input_ids)
    if sampling.return_generation_logits:
        num_rows += sampling.beam_width * sampling.max_tokens
    if sampling.use_draft_logits:  # within the engine's process, but as large
        num_rows += sampling.num_draft_tokens
    limit = _MAX_LOGITS_BYTES // (4 * vocab_size)
    if num_rows > limit:
        raise RequestError(
            f"logits of {num_rows} tokens, all beams and drafts together, are more than a response may hold ({limit}); "
            "ask for fewer tokens, beams or drafts",
            field="max_tokens",
            value=sampling.max_tokens,
        )


def _check_beams(request: DecodedRequest) -> None:
    """Refuse options that a beam search cannot serve: earlier tokens may change, nothing is certain until its end."""
    width, wanted = request.sampling.beam_width, request.options.num_return_sequences
    if width == 1:
        return
    if request.options.is_streaming:
        raise RequestError(
            f"beam_width ({width}) does not go with stream: beams are known only at their end; leave stream out, or "
            "ask for num_return_sequences instead of beams",
            field="beam_width",
            value=width,
        )
    if not request.sampling.is_greedy:
        raise RequestError(
            f"beam_width ({width}) does not go with top_k or top_p: beams are searched, not sampled; leave them out",
            field="beam_width",
            value=width,
        )
    if wanted is not None and wanted > width:
        raise out_of_range("num_return_sequences", wanted, f"1 to {width}, the beams")


def _refused_by_all(name: str, row: Tensor, info: EngineInfo) -> RequestError:
    return RequestError(
        f"{name} is not supported by the provider {info.provider!r}; {row.why_not}", field=name, provider=info.provider
    )


# By field; of two names for one setting the newer, which comes first in the table.
_CLIENT_NAMES = {row.field: row.ensemble for row in reversed(_ROWS.values()) if row.ensemble}
# What a caller of the ensemble sends as text and the engine step gets as ids.
_ENSEMBLE_NAMES = _CLIENT_NAMES | {row.field: row.ensemble for _, row in reversed(inputs_of("preprocessing"))}
# What an engine reads as an array, by its annotation.
_PACKED = frozenset(field for field, hint in get_type_hints(SamplingParams).items() if hint == PackedArray | None)
_RANGES = ranges_of(SamplingParams) | ranges_of(ResponseOptions) | ranges_of(Scheduling)
_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(SamplingParams)
    if field.default is not msgspec.NODEFAULT
}
