# SPDX-License-Identifier: Apache-2.0
"""A check of guides before TensorRT-LLM compiles them, by the library that does it there: xgrammar, which it brings.

A compiled engine compiles a request's guide in the forward step of everybody, and fails everybody where that raises
(docs/trtllm_behaviour.md, D1 (guides)). Parsing alone needs no tokenizer, and takes milliseconds for most guides.
"""

import functools

from trireme.base.errors import RequestError

# Source: python/xgrammar/grammar.py of mlc-ai/xgrammar; each raises RuntimeError for what it cannot parse.
_PARSERS = {"json_schema": "from_json_schema", "regex": "from_regex", "ebnf_grammar": "from_ebnf"}
_FIELD = "guided_decoding_guide"
_NUM_REMEMBERED = 256
_MAX_REASON_CHARS = 300


class GuideCheck:
    """The guides of one engine, each parsed once.

    Args:
        provider: for errors.
        grammar: xgrammar's class; None: it is not installed, and no guide is taken.
    """

    def __init__(self, provider: str, grammar: object | None) -> None:
        self._provider = provider
        self._grammar = grammar
        self._reason = functools.lru_cache(_NUM_REMEMBERED)(self._parse)

    def refuse(self, guide_type: str, guide: str) -> None:
        """Check that upstream will be able to compile a guide.

        Raises:
            RequestError: upstream will not, or xgrammar is not installed, so nobody knows.
        """
        if guide_type not in _PARSERS:
            return
        if self._grammar is None:
            raise RequestError(
                f"{_FIELD} cannot be checked, for the Python package xgrammar is not there; install the version that "
                "TensorRT-LLM names in its requirements.txt, or leave the guide out",
                field=_FIELD,
                provider=self._provider,
            )
        if reason := self._reason(guide_type, guide):
            message = f"the guide is no {guide_type} that compiles: {reason}; send another"
            raise RequestError(message, field=_FIELD, provider=self._provider)

    def _parse(self, guide_type: str, guide: str) -> str:
        """Return what is wrong with a guide; empty: nothing."""
        try:
            getattr(self._grammar, _PARSERS[guide_type])(guide)
        except (RuntimeError, ValueError) as exc:
            return " ".join(str(exc).split())[:_MAX_REASON_CHARS] or repr(exc)
        return ""
