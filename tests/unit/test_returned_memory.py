# SPDX-License-Identifier: Apache-2.0
"""The environments of processes that return memory to the system at once, and of those that do not."""

from serving.engines.engine_start import EngineStart
from serving.returned_memory import with_returned_memory


def test_an_engine_s_process_has_the_environment_that_the_operator_gave() -> None:
    given = {"PATH": "/bin", "MALLOC_TRIM_THRESHOLD_": "5"}
    server = with_returned_memory(given)
    assert server == given | {"MALLOC_MMAP_THRESHOLD_": "1048576"}
    assert EngineStart().environment_from(server) == given
