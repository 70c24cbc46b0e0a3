# SPDX-License-Identifier: Apache-2.0
"""Token ids to exact text, stream by stream: the joined deltas are what `Tokenizer.decode` makes of all ids at once.

What each token adds comes from the `tokenizers` library's decoder, tabulated when it is loaded
(`serving.token_pieces`); a stream keeps the bytes of one incomplete character. The library's own incremental decoder,
`DecodeStream`, is not used: it decodes again all that it holds back, never gives out at the end what it holds, and
fails ("Invalid prefix") where a valid byte token is followed by an invalid one. Million tokens/s on one core, one token
at a time / in chunks of 16:

                                              here          DecodeStream
    byte-level, English                       2.6 / 15.7    1.0 / 2.9
    byte-level, 4,000 bytes 0x80              2.4 / 17.3    0.003 / 0.06
    Llama 2's decoder, English                2.5 / 6.2     0.6 / 1.3
    Llama 2's decoder, Chinese in bytes       1.7 / 2.9     0.6 / 1.1
    Llama 2's decoder, 4,000 bytes 0x80       2.8 / 7.2     0.002 / 0.03

4,000 tokens, median of 9; a new stream takes 0.3 us. tokenizers 0.22.2, Python 3.11.7, shared 2-core Xeon, 2026-11-20.

One rule is ours. Where characters are spelled in byte tokens (`ByteFallback`: Llama 2, Gemma), the library turns a
whole run of them into U+FFFD when any byte of it is invalid. What a stream has shown it cannot take back: characters
complete before the invalid byte stay, as in SentencePiece itself. Everything else is exact, and U+FFFD comes only where
the full decode has it.
"""

from abc import ABC, abstractmethod
from codecs import utf_8_decode
from collections.abc import Sequence

from tokenizers import Tokenizer

from ensemble_configs.errors import SpecError
from ensemble_configs.release_spec import TokenizerSpec
from serving.stop_strings import StopStringMatcher
from serving.token_pieces import BytePieces, Piece, TextPieces, load_pieces
from serving.tokenizer_files import load_tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamingDetokenizer(ABC):
    """The text of one stream of tokens; for one thread at a time. At most 3 bytes are held back."""

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete. Ids outside the vocabulary add nothing, as in `Tokenizer.decode`."""

    @abstractmethod
    def flush(self) -> str:
        """The end of the text: U+FFFD for a character that stayed incomplete. Nothing is pushed afterwards."""


class _ByteLevelStream(StreamingDetokenizer):
    """Tokens are bytes of UTF-8."""

    __slots__ = ("_bytes_of", "_incomplete")

    def __init__(self, pieces: BytePieces) -> None:
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
    """Tokens are text, or single bytes; the first one may lose its leading space."""

    __slots__ = ("_incomplete", "_is_first", "_is_run_invalid", "_num_to_strip", "_pieces")

    def __init__(self, pieces: TextPieces, *, follows_text: bool) -> None:
        self._pieces = pieces
        self._is_first = not follows_text
        self._num_to_strip = 0 if follows_text else pieces.max_stripped
        self._incomplete = b""
        self._is_run_invalid = False

    def push(self, token_ids: Sequence[int]) -> str:
        text = "".join([self._add(token_id) for token_id in token_ids])
        return self._strip(text) if self._num_to_strip else text

    def flush(self) -> str:
        return self._end_run()

    def _add(self, token_id: int) -> str:
        piece: Piece | None = self._pieces.later.get(token_id)
        if piece is None:
            return ""
        if self._is_first:
            self._is_first = False
            piece = self._pieces.first_piece(token_id)
        return self._end_run() + piece if isinstance(piece, str) else self._add_byte(piece)

    def _add_byte(self, byte: bytes) -> str:
        if self._is_run_invalid:
            return _REPLACEMENT
        data = self._incomplete + byte
        try:
            text, num_used = utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            self._incomplete, self._is_run_invalid = b"", True
            return _REPLACEMENT * len(data)
        self._incomplete = data[num_used:]
        return text

    def _end_run(self) -> str:
        num_incomplete = len(self._incomplete)
        self._incomplete, self._is_run_invalid = b"", False
        return _REPLACEMENT * num_incomplete

    def _strip(self, text: str) -> str:
        rest = text
        while self._num_to_strip and rest.startswith(self._pieces.strip_character):
            rest = rest[1:]
            self._num_to_strip -= 1
        if rest:
            self._num_to_strip = 0
        return rest


class TextDecoder:
    """Makes a detokenizer for each stream; loaded once in a process, shared by all threads."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Raises: SpecError: the tokenizer's decoder cannot be streamed exactly."""
        self._pieces = load_pieces(tokenizer, skip_special_tokens=skip_special_tokens)
        self._check_against(tokenizer, skip_special_tokens)

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> "TextDecoder":
        """Raises: SpecError: a file is missing or broken, or its decoder cannot be streamed exactly."""
        return cls(load_tokenizer(spec.dir), skip_special_tokens=spec.skip_special_tokens)

    def new_stream(self, *, follows_text: bool = False) -> StreamingDetokenizer:
        """A stream that begins a text, or goes on behind one (a leading space then stays)."""
        if isinstance(self._pieces, BytePieces):
            return _ByteLevelStream(self._pieces)
        return _PieceStream(self._pieces, follows_text=follows_text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """A whole text, the same as streamed."""
        stream = self.new_stream()
        return stream.push(token_ids) + stream.flush()

    def _check_against(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        """The whole vocabulary as one text, so that another version of the library cannot silently differ."""
        if isinstance(self._pieces, BytePieces):
            token_ids = list(self._pieces)
        else:  # byte tokens one after the other would be one long invalid run, where the rule is ours
            token_ids = [token_id for token_id, piece in self._pieces.later.items() if isinstance(piece, str)]
        if self.decode(token_ids) != tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens):
            raise SpecError(
                "the tokenizers library decodes this tokenizer.json in another way than serving.token_pieces expects; "
                "use the version of tokenizers that the lock file names, or report it",
                field="tokenizer.dir",
            )


class StreamText:
    """The text of one answer, cut before the first stop string; for one thread at a time."""

    def __init__(self, decoder: TextDecoder, stop_strings: Sequence[str] = ()) -> None:
        """Args: `stop_strings` as `serving.stop_strings.check_stop_strings` returns them."""
        self._decoder = decoder
        self._detokenizer = decoder.new_stream()
        self._matcher = StopStringMatcher(stop_strings)
        self._follows_prompt = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text; nothing comes any more."""
        return self._matcher.stopped

    def push_prompt(self, token_ids: Sequence[int]) -> str:
        """The text of an echoed prompt; no stop string is looked for in it. Only before the first `push`."""
        text = self._decoder.decode(token_ids)
        self._follows_prompt = bool(text)
        return text

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is now certain: no incomplete character, no beginning of a stop string."""
        if self._matcher.stopped:
            return ""
        text = self._matcher.push(self._detokenizer.push(token_ids))
        if self._follows_prompt and token_ids:
            self._follows_prompt = False
            return self._space_before(token_ids) + text
        return text

    def finish(self) -> str:
        """The end of the text, with what was held back."""
        return self._matcher.push(self._detokenizer.flush()) + self._matcher.finish()

    def _space_before(self, token_ids: Sequence[int]) -> str:
        """What stands between prompt and answer: the leading space that an answer alone would not have.

        It is kept out of the match, for the engine's process, which sees no echo, must stop at the same token.
        """
        alone = self._decoder.new_stream().push(token_ids)
        following = self._decoder.new_stream(follows_text=True).push(token_ids)
        return following.removesuffix(alone) if following.endswith(alone) else ""


class StopStringWatch:
    """Where the answer's text is stopped, told in tokens: for the engine's process, which then generates no more.

    It follows a `StreamText` of the same tokens, so both processes stop at the same character, however the tokens come.
    """

    def __init__(self, decoder: TextDecoder, stop_strings: Sequence[str]) -> None:
        self.strings = tuple(stop_strings)
        self._text = StreamText(decoder, stop_strings)

    def tokens_until_stop(self, token_ids: Sequence[int]) -> int | None:
        """How many of these tokens to keep, the last of them completing a stop string; None while none is complete."""
        for num_tokens, token_id in enumerate(token_ids, start=1):
            self._text.push((token_id,))
            if self._text.stopped:
                return num_tokens
        return None
