# SPDX-License-Identifier: Apache-2.0
"""The checks of a request's guide that are possible before an engine knows the grammar."""

from serving.engines.seam.base import SamplingParams
from trireme.base.errors import RequestError

GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar", "structural_tag")
MAX_GUIDE_CHARS = 65536
_TYPE, _GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"


def guide_text(raw: bytes, name: str) -> str | None:
    """Return the tensor `name` of a guide as text; None: empty text asks for nothing.

    Raises:
        RequestError: the text is not UTF-8, or longer than 65,536 characters.
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
    """Check that a guide has both its type and its text; ``json`` needs no text.

    Raises:
        RequestError: the type is unknown, or type or text is missing.
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
