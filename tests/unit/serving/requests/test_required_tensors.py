# SPDX-License-Identifier: Apache-2.0
"""A required input that is missing is named; Triton counts inputs, and lets a request with another one more pass."""

import numpy as np
import pytest

from serving.requests.required_tensors import check_required
from trireme.base.errors import RequestError


def test_a_complete_request_passes() -> None:
    check_required("preprocessing", {"QUERY": np.zeros(1), "REQUEST_OUTPUT_LEN": np.zeros(1)})
    check_required("postprocessing", ["TOKENS_BATCH"])


@pytest.mark.parametrize(
    ("model", "given", "field"),
    [
        ("preprocessing", ["REQUEST_OUTPUT_LEN", "END_ID"], "text_input"),
        ("preprocessing", ["QUERY", "END_ID"], "max_tokens"),
        ("postprocessing", ["SEQUENCE_LENGTH"], "TOKENS_BATCH"),
    ],
)
def test_what_is_missing_is_named_as_the_client_knows_it(model: str, given: list[str], field: str) -> None:
    with pytest.raises(RequestError, match=f"{field} is missing; it is required") as caught:
        check_required(model, given)
    assert caught.value.facts == {"field": field}
