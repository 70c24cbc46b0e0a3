# SPDX-License-Identifier: Apache-2.0
"""The environments of processes that return memory to the system at once, and what tokenizing leaves behind."""

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from simulated_release import TOKENIZER

from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engines.seam.engine_start import EngineStart
from serving.process.returned_memory import with_returned_memory
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

pytestmark = pytest.mark.slow


def test_an_engine_s_process_has_the_environment_that_the_operator_gave() -> None:
    given = {"PATH": "/bin", "MALLOC_TRIM_THRESHOLD_": "5"}
    server = with_returned_memory(given)
    assert server == given | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    assert EngineStart().environment_from(server) == given


def words_of_a_hostile_client(tokenizer: PromptTokenizer) -> None:
    """Tokenize 5,000 words that nobody will send again, as long as the library's cache takes them."""
    choose = random.Random(1)
    for _ in range(100):
        tokenizer.encode(" ".join("".join(choose.choices("abcdefghijklmnop", k=250)) for _ in range(50)))


def texts_of_a_megabyte(tokenizer: PromptTokenizer) -> None:
    """Tokenize accepted and refused texts: of one word, of two characters a token, of words."""
    for text in ("a" * 100_000, "a" * 1_000_000, "a/'{ " * 200_000, "the king of France " * 20_000):
        for _ in range(2):
            with suppress(RequestError):
                tokenizer.encode(text)


WORK = {each.__name__: each for each in (words_of_a_hostile_client, texts_of_a_megabyte)}


@pytest.mark.parametrize("name", WORK)
def test_what_a_client_has_tokenized_does_not_stay_in_memory(name: str) -> None:
    child = [sys.executable, __file__, name]
    environ = with_returned_memory({"PYTHONPATH": ":".join(sys.path)})
    grown = subprocess.run(child, env=environ, check=True, capture_output=True, text=True).stdout
    assert int(grown) < 16 * 2**20


if __name__ == "__main__":  # in a process that has done nothing else
    limited = PromptTokenizer.from_spec(TokenizerSpec(dir=Path(TOKENIZER)), max_seq_len=131_072)
    limited.encode("hello " * 10_000)
    before = psutil.Process().memory_full_info().uss
    WORK[sys.argv[1]](limited)
    sys.stdout.write(str(psutil.Process().memory_full_info().uss - before))
