# SPDX-License-Identifier: Apache-2.0
"""The check for required inputs, which Triton leaves out.

Triton only counts a request's inputs, so an optional input makes up for a required input that is missing.
"""

from collections.abc import Container

from ensemble_configs.render.tensors import inputs_of
from trireme.base.errors import RequestError

_NAMES = {
    model: {row.ensemble or name: name for name, row in inputs_of(model)}
    for model in ("preprocessing", "postprocessing")
}
_REQUIRED = {
    model: [(row.ensemble or name, row.instead) for name, row in inputs_of(model) if row.is_required]
    for model in _NAMES
}


def check_required(model: str, given: Container[str]) -> None:
    """Check that the inputs of a request to `preprocessing` or `postprocessing` are complete.

    Raises:
        RequestError: a required input is missing, and so is the input that may replace it; the error has the name that
            the ensemble's client knows.
    """
    names = _NAMES[model]
    for field, instead in _REQUIRED[model]:
        if names[field] not in given and (not instead or names[instead] not in given):
            other = f", or {instead} in its place" if instead else ""
            raise RequestError(f"{field} is missing; it is required{other}", field=field)
