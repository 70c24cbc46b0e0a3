# SPDX-License-Identifier: Apache-2.0
"""The guide of a request: what may be said of it before an engine knows the grammar."""

from serving.engines.seam.base import SamplingParams
from trireme.base.errors import RequestError

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
MAX_GUIDE_CHARS = 65536
_TYPE, _GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"


def guide_text(raw: bytes, name: str) -> str | None:
    """One of the two tensors as text; empty text asks for nothing.

    Raises:
        RequestError: it is not UTF-8, or longer than 65,536 characters.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RequestError(f"{name} is not UTF-8; send UTF-8", field=name) from exc
    if len(text) > MAX_GUIDE_CHARS:
        message = f"{name} has {len(text)} characters; send at most {MAX_GUIDE_CHARS}"
        raise RequestError(message, field=name, value=len(text), max=MAX_GUIDE_CHARS)
    return text or None


def check_guide(sampling: SamplingParams) -> None:
    """Both parts belong together, but for ``json``, which says everything by itself.

    Raises:
        RequestError: a type that is none, a type without its guide, or a guide without a type.
    """
    guide_type, guide = sampling.guide_type, sampling.guide
    if guide_type is None:
        if guide is not None:
            raise RequestError(f"{_GUIDE} needs {_TYPE}; send one of {', '.join(GUIDE_TYPES)}", field=_TYPE)
        return
    if guide_type not in GUIDE_TYPES:
        message = f"{_TYPE} must be one of {', '.join(GUIDE_TYPES)}; got {guide_type}"
        raise RequestError(message, field=_TYPE, value=guide_type)
    if (guide_type == "json") != (guide is None):
        message = f"{_TYPE} {guide_type} " + ("takes no guide; leave it out" if guide else "needs a guide; send it")
        raise RequestError(message, field=_GUIDE)
