# SPDX-License-Identifier: Apache-2.0
"""The sequences that the engine generates for a request, made from its tensors: prompts checked, sequences named.

A request is mostly one prompt and one sequence. Several of either share its sink (`serving.pipeline.sequence_group`).
"""

import itertools
from collections.abc import Callable, Iterable

import msgspec

from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engines.seam.base import EngineInfo, GenerationRequest
from serving.engines.seam.continuation import continued
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.running_request import ReplySink, RunningRequest
from serving.pipeline.sequence_group import Member, SequenceGroup, context_of, sampling_of
from serving.requests.engine_request import DecodedRequest, RequestDecoder
from serving.requests.prompt_batch import Row, engine_rows, for_each_row
from serving.requests.stream_state import KEYS_PER_REQUEST, StreamContext, unpack_context
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.detokenization import TextDecoder
from serving.text.stop_strings import check_stop_strings
from trireme.base.errors import RequestError

Generation = tuple[GenerationRequest, RunningRequest]


class Prompt(msgspec.Struct, frozen=True):
    """A checked prompt of a request."""

    request: DecodedRequest
    context: StreamContext | None
    stop_strings: tuple[str, ...]

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences to ask the engine for; 1 for a beam search, which has many beams."""
        return 1 if self.request.sampling.beam_width > 1 else self.request.options.num_return_sequences or 1


class RequestSequences:
    """The reader of requests for one release and its engine: tensors in, sequences with unique keys out."""

    def __init__(self, release: ReleaseSpec, text: TextDecoder, info: EngineInfo, metrics: RequestMetrics) -> None:
        self._responses = release.responses
        self._release = release.release
        self._text = text
        self._decoder = RequestDecoder(info)
        self._kv_block_tokens = info.kv_block_tokens
        self._metrics = metrics
        self._keys = itertools.count(1)

    def prompts(self, tensors: Row, *, is_context_only: bool = False) -> list[Prompt]:
        """Return the checked prompts of a request.

        Args:
            tensors: tensors by the names of `tensorrt_llm`'s inputs.
            is_context_only: prefill and hand over only, for disaggregated serving.

        Raises:
            RequestError: a prompt is refused, or all prompts together ask for more than 128 sequences.
        """
        rows = engine_rows(tensors)
        if len(rows) == 1:
            return [self._prompt(rows[0], is_context_only)]
        prompts = for_each_row(lambda row: self._prompt(row, is_context_only), rows)
        _check_batch(prompts)
        return prompts

    def sequences(
        self,
        prompts: list[Prompt],
        sink: ReplySink,
        origin: RequestOrigin = NO_ORIGIN,
        *,
        on_failure: Callable[[Iterable[int]], None],
    ) -> tuple[list[Generation], SequenceGroup | None]:
        """Return the sequences to generate, and the group that shares the sink; None: there is only one sequence.

        Args:
            prompts: prompts of one request.
            sink: sink of the request.
            origin: origin of the request.
            on_failure: called with the keys of all sequences when a sequence has failed, and the request with it.
        """
        if len(prompts) == 1 and prompts[0].num_sequences == 1:
            return [self._sequence(next(self._keys), prompts[0], 0, sink, origin)], None
        members = [
            Member(batch_index if len(prompts) > 1 else None, index if prompt.num_sequences > 1 else None)
            for batch_index, prompt in enumerate(prompts)
            for index in range(prompt.num_sequences)
        ]
        keys = [next(self._keys) for _ in members]
        group = SequenceGroup(sink, members, on_failure=lambda: on_failure(keys))
        sequences = [
            self._sequence(key, prompts[member.batch_index or 0], member.sequence_index or 0, each, origin)
            for key, member, each in zip(keys, members, group.sinks, strict=True)
        ]
        return sequences, group

    def _prompt(self, row: Row, is_context_only: bool) -> Prompt:
        request = self._decoder.decode(row, is_context_only=is_context_only)
        packed = request.options.stream_context
        context = None if packed is None else unpack_context(packed)
        strings = context.stop_strings if context else self._stop_strings(request.options.stop_words_list)
        return Prompt(request, context, strings)

    def _stop_strings(self, words: list[list[int]] | None) -> tuple[str, ...]:
        """Return the text of upstream's ``[2, n]`` token ids: text matches in any tokenization that the model makes."""
        if words is None:
            return ()
        ids, offsets = words[0], [offset for offset in words[1] if offset > 0]
        return check_stop_strings(self._text.decode(ids[start:end]) for start, end in itertools.pairwise([0, *offsets]))

    def _sequence(self, key: int, prompt: Prompt, index: int, sink: ReplySink, origin: RequestOrigin) -> Generation:
        options = prompt.request.options
        sampling = sampling_of(prompt.request.sampling, index)
        is_excluded = options.exclude_input_in_output
        if is_excluded is None:
            is_excluded = self._responses.exclude_input_in_output
        request = GenerationRequest(
            key=key,
            input_ids=options.input_ids,
            sampling=sampling,
            stop_strings=prompt.stop_strings,
            scheduling=prompt.request.scheduling,
            tells_perf=options.return_perf_metrics,
            prefix=origin.prefix,
        )
        if options.continued_ids:
            request = continued(request, options.continued_ids, key=key)
        running = RunningRequest(
            sink,
            origin.request_id,
            options,
            context_of(prompt.context, index),
            not is_excluded,
            origin.observer.begin_sequence(
                self._metrics, num_prompt_tokens=len(options.input_ids), kv_block_tokens=self._kv_block_tokens
            ),
            returns_log_probs=sampling.return_log_probs,
            stream_name=origin.stream_name,
            is_direct=origin.way is not None,
            sequence_index=index,
            release=self._release,
            kv_block_tokens=self._kv_block_tokens,
        )
        return request, running


def _check_batch(prompts: list[Prompt]) -> None:
    if len({prompt.request.options.stop for prompt in prompts}) > 1:
        raise RequestError("stop is for the whole request; send the same for each prompt of a batch", field="stop")
    total = sum(prompt.num_sequences for prompt in prompts)
    if total > KEYS_PER_REQUEST:
        raise RequestError(
            f"{len(prompts)} prompts with num_return_sequences are {total} sequences, and a request may have "
            f"{KEYS_PER_REQUEST}; ask for fewer, or send fewer prompts",
            field="num_return_sequences",
            value=total,
            max=KEYS_PER_REQUEST,
        )
