# SPDX-License-Identifier: Apache-2.0
"""The check for required inputs that Triton leaves out: it counts a request's inputs, and an optional one makes up for
a required one that is missing.
"""

from collections.abc import Container

from ensemble_configs.errors import RequestError
from ensemble_configs.tensors import inputs_of

_REQUIRED = {
    model: {name: row.ensemble or name for name, row in inputs_of(model) if row.is_required}
    for model in ("preprocessing", "postprocessing")
}


def check_required(model: str, names: Container[str]) -> None:
    """Check that the inputs of a request to `preprocessing` or `postprocessing` are complete.

    Raises:
        RequestError: one is missing; named as the ensemble's client knows it.
    """
    for name, field in _REQUIRED[model].items():
        if name not in names:
            raise RequestError(f"{field} is missing; it is required", field=field)
