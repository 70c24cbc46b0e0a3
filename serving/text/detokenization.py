# SPDX-License-Identifier: Apache-2.0
"""The exact text of token ids, stream by stream: the joined deltas equal the text of all ids by `Tokenizer.decode`.

The text that each token adds comes from the `tokenizers` library's decoder, tabulated when it is loaded
(`serving.text.token_pieces`); a stream keeps the bytes of one incomplete character. The library's own incremental
decoder, `DecodeStream`, is not used: it decodes again all that it holds back, never gives out at the end what it holds,
and fails ("Invalid prefix") where a valid byte token is followed by an invalid one. Million tokens/s on one core, one
token at a time / in chunks of 16:

                                              here          DecodeStream
    byte-level, English                       2.0 / 14.0    1.4 / 3.1
    byte-level, 4,000 bytes 0x80              1.8 / 13.5    0.003 / 0.05
    Llama 2's decoder, English                2.2 / 6.9     0.7 / 1.2
    Llama 2's decoder, Chinese in bytes       1.1 / 2.4     0.7 / 0.9
    Llama 2's decoder, 4,000 bytes 0x80       2.2 / 5.9     0.001 / 0.02

4,000 tokens, median of 9; a new stream takes 0.3 us. tokenizers 0.22.2, Python 3.11.7, AMD EPYC, 2 cores, 2026-11-24.

Where characters are spelled in byte tokens (`ByteFallback`: Llama 2, Mistral, Gemma), the library turns a whole run of
them into U+FFFD, one for each byte, when one byte of it is invalid or its last character is cut. A stream cannot
take back text that it has shown, so such a run is held back until it ends, or is known to be invalid. Stop strings need
not wait for that: if generation ends at the character that completes one, the run ends there, too, and is valid
(`StreamText`).
"""

from abc import ABC, abstractmethod
from codecs import utf_8_decode
from collections.abc import Sequence

from tokenizers import Tokenizer

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.text.stop_strings import StopStringMatcher
from serving.text.token_pieces import BytePieces, Piece, TextPieces, load_pieces
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import SpecError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamingDetokenizer(ABC):
    """The text of one stream of tokens; for one thread at a time.

    Attributes:
        newest: the part of the held-back text that the last token completed; it is certain if the tokens end here.
    """

    __slots__ = ("newest",)

    def __init__(self) -> None:
        self.newest = ""

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that the tokens complete; unknown ids add nothing, as in `Tokenizer.decode`."""

    @abstractmethod
    def flush(self) -> str:
        """Return the end of the text, U+FFFD for an incomplete character; call nothing afterwards."""


class _ByteLevelStream(StreamingDetokenizer):
    """The text of tokens that are bytes of UTF-8; at most 3 bytes are held back."""

    __slots__ = ("_bytes_of", "_incomplete")

    def __init__(self, pieces: BytePieces) -> None:
        super().__init__()
        self._bytes_of = pieces.__getitem__
        self._incomplete = b""

    def push(self, token_ids: Sequence[int]) -> str:
        data = self._incomplete + b"".join(map(self._bytes_of, token_ids))
        # "replace" puts U+FFFD where Rust's from_utf8_lossy does: one for each maximal subpart (Unicode, section 3.9).
        text, num_used = utf_8_decode(data, "replace", False)
        self._incomplete = data[num_used:]
        return text

    def flush(self) -> str:
        incomplete, self._incomplete = self._incomplete, b""
        return incomplete.decode("utf-8", "replace")


class _PieceStream(StreamingDetokenizer):
    """The text of tokens that are text or single bytes; runs of bytes are held back, a leading space may be cut."""

    __slots__ = ("_incomplete", "_is_first", "_is_run_invalid", "_num_run_bytes", "_num_to_strip", "_pieces", "_run")

    def __init__(self, pieces: TextPieces, *, follows_text: bool) -> None:
        super().__init__()
        self._pieces = pieces
        self._is_first = not follows_text
        self._num_to_strip = 0 if follows_text else pieces.max_stripped
        # The run that the text ends with: its characters, the bytes behind them, and the number of all its bytes.
        self._run: list[str] = []
        self._incomplete = b""
        self._num_run_bytes = 0
        self._is_run_invalid = False

    def push(self, token_ids: Sequence[int]) -> str:
        text = "".join([self._add(token_id) for token_id in token_ids])
        return self._strip(text) if self._num_to_strip else text

    def flush(self) -> str:
        text = self._end_run()
        return self._strip(text) if self._num_to_strip else text

    def _add(self, token_id: int) -> str:
        piece: Piece | None = self._pieces.later.get(token_id)
        self.newest = ""
        if piece is None:
            return ""
        if self._is_first:
            self._is_first = False
            piece = self._pieces.first_piece(token_id)
        if isinstance(piece, bytes):
            return self._add_byte(piece)
        return self._end_run() + piece if self._num_run_bytes else piece

    def _add_byte(self, byte: bytes) -> str:
        self._num_run_bytes += 1
        if self._is_run_invalid:
            return _REPLACEMENT
        data = self._incomplete + byte
        try:
            character, num_used = utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            self._run, self._incomplete, self._is_run_invalid = [], b"", True
            return _REPLACEMENT * self._num_run_bytes
        self._incomplete = data[num_used:]
        if character:
            self._run.append(character)
            self.newest = "" if self._num_to_strip and self._will_be_stripped() else character
        return ""

    def _will_be_stripped(self) -> bool:
        """Return whether the beginning of the text loses the last character of the run."""
        return len(self._run) <= self._num_to_strip and set(self._run) == {self._pieces.strip_character}

    def _end_run(self) -> str:
        if self._is_run_invalid:
            text = ""  # its bytes are in the text already
        else:
            text = _REPLACEMENT * self._num_run_bytes if self._incomplete else "".join(self._run)
        self._run, self._incomplete, self._num_run_bytes, self._is_run_invalid = [], b"", 0, False
        return text

    def _strip(self, text: str) -> str:
        rest = text
        while self._num_to_strip and rest.startswith(self._pieces.strip_character):
            rest = rest[1:]
            self._num_to_strip -= 1
        if rest:
            self._num_to_strip = 0
        return rest


class TextDecoder:
    """The maker of a detokenizer for each stream; loaded once in a process, shared by all threads."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Tabulate the tokenizer's decoder.

        Args:
            tokenizer: tokenizer of the release.
            skip_special_tokens: leave special tokens out of the text.

        Raises:
            SpecError: the tokenizer's decoder cannot be streamed exactly.
        """
        self._pieces = load_pieces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._check_against(tokenizer, skip_special_tokens)

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> "TextDecoder":
        """Load the decoder of a deployment's tokenizer.

        Raises:
            SpecError: a file is missing or broken, or the tokenizer's decoder cannot be streamed exactly.
        """
        return cls(load_tokenizer(spec.dir), skip_special_tokens=spec.skip_special_tokens)

    @property
    def holds_runs(self) -> bool:
        """Return whether text of complete characters may be held back, as it is for byte tokens."""
        return isinstance(self._pieces, TextPieces) and self._pieces.has_byte_tokens

    def new_stream(self, *, follows_text: bool = False) -> StreamingDetokenizer:
        """Return a stream that begins a text, or goes on behind a text (a leading space then stays)."""
        if isinstance(self._pieces, BytePieces):
            return _ByteLevelStream(self._pieces)
        return _PieceStream(self._pieces, follows_text=follows_text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the whole text of the tokens, equal to the streamed text."""
        stream = self.new_stream()
        return stream.push(token_ids) + stream.flush()

    def _check_against(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        """Compare the text of the whole vocabulary, so that another version of the library cannot silently differ."""
        token_ids = list(self._pieces if isinstance(self._pieces, BytePieces) else self._pieces.later)
        if self.decode(token_ids) != tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens):
            raise SpecError(
                "the tokenizers library decodes this tokenizer.json in another way than serving.text.token_pieces "
                "expects; "
                "use the version of tokenizers that the lock file names, or report it",
                field="tokenizer.dir",
            )


class StreamText:
    """The text of one answer, cut before the first stop string; for one thread at a time."""

    def __init__(self, decoder: TextDecoder, stop_strings: Sequence[str] = ()) -> None:
        """Begin an answer without text.

        Args:
            decoder: text decoder of the release.
            stop_strings: stop strings, checked by `serving.text.stop_strings.check_stop_strings`.
        """
        self._decoder = decoder
        self._detokenizer = decoder.new_stream()
        self._matcher = StopStringMatcher(stop_strings) if stop_strings else None
        self._looks_ahead = bool(stop_strings) and decoder.holds_runs
        # The answer as it reads behind an echoed prompt, until the part that the answer alone lacks is known.
        self._following: StreamingDetokenizer | None = None

    @property
    def stopped(self) -> bool:
        """Return whether a stop string ended the text; no more text comes then."""
        return self._matcher is not None and self._matcher.stopped

    @property
    def stopped_by(self) -> str:
        """Return the stop string that ended the text; "": none has."""
        return "" if self._matcher is None else self._matcher.stopped_by

    def push_prompt(self, token_ids: Sequence[int]) -> str:
        """Return the text of an echoed prompt, without looking for stop strings; call only before the first `push`."""
        text = self._decoder.decode(token_ids)
        if text:
            self._following = self._decoder.new_stream(follows_text=True)
        return text

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that is now certain: no incomplete character, no beginning of a stop string."""
        if self.stopped:
            return ""
        if self._looks_ahead:
            return "".join(map(self._push_one, token_ids))
        alone = self._detokenizer.push(token_ids)
        space = self._space(self._following.push(token_ids), alone) if self._following else ""
        return space + (self._matcher.push(alone) if self._matcher else alone)

    def finish(self) -> str:
        """Return the end of the text, which was held back."""
        alone = self._detokenizer.flush()
        space = self._space(self._following.flush(), alone) if self._following and not self.stopped else ""
        return space + (self._matcher.push(alone) + self._matcher.finish() if self._matcher else alone)

    def _push_one(self, token_id: int) -> str:
        """Push one token; its text may be held back although it completes a stop string."""
        assert self._matcher is not None, "there are stop strings"
        if self.stopped:
            return ""
        token_ids = (token_id,)
        alone = self._detokenizer.push(token_ids)
        new = self._space(self._following.push(token_ids), alone) if self._following else ""
        if alone:
            new += self._matcher.push(alone)
        if self._detokenizer.newest and self._matcher.is_stopped_by(self._detokenizer.newest):
            # Generation ends here, and with it the run that the text is held back for.
            new += self.finish()
        return new

    def _space(self, following: str, alone: str) -> str:
        """Return the leading space between prompt and answer, which an answer alone would not have.

        The space is kept out of the match: the engine's process sees no echo, and must stop at the same token.
        """
        if alone:
            self._following = None
        return following.removesuffix(alone) if following.endswith(alone) else ""


class StopStringWatch:
    """The token at which a stop string ends an answer, for the engine's process, which then stops generating.

    The watch feeds a `StreamText` as postprocessing does, so both processes stop at one character, however tokens come.
    """

    def __init__(self, decoder: TextDecoder, stop_strings: Sequence[str]) -> None:
        self.strings = tuple(stop_strings)
        self._text = StreamText(decoder, stop_strings)

    def tokens_until_stop(self, token_ids: Sequence[int]) -> int | None:
        """Return the number of tokens to keep, with the end of a stop string last; None: no string is complete."""
        for num_tokens, token_id in enumerate(token_ids, start=1):
            self._text.push((token_id,))
            if self._text.stopped:
                return num_tokens
        return None
