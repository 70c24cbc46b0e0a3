# SPDX-License-Identifier: Apache-2.0
"""No flag of upstream's client scripts is forgotten: each is tried, or there is a reason why not."""

from pathlib import Path

import pytest
import yaml
from upstream_flags import FLAGS, flags_of

KNOWN = yaml.safe_load((Path(__file__).parents[2] / "data" / "upstream_client_flags.yaml").read_text())


@pytest.mark.parametrize("script", KNOWN)
def test_each_flag_of_a_client_is_tried_or_there_is_a_reason_why_not(script: str) -> None:
    flags = {f"--{name}" for name in KNOWN[script].split()}
    assert flags - set(FLAGS[script]) == set(), "neither tried nor with a reason"
    assert set(FLAGS[script]) - flags == set(), "the script has no such flag"


def test_the_six_clients_are_all_there() -> None:
    assert set(FLAGS) == set(KNOWN)


def test_the_scripts_of_another_version_have_the_same_flags(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--upstream-clients")
    if folder is None:
        pytest.skip("needs --upstream-clients with the folder triton_backend of a checkout of TensorRT-LLM")
    found = {script: flags_of(folder / script) for script in KNOWN}
    assert found == {script: {f"--{name}" for name in flags.split()} for script, flags in KNOWN.items()}


def test_flags_are_read_as_argparse_gets_them(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text(
        "import no_such_package\n"
        "parser.add_argument('-v', '--verbose', action='store_true')\n"
        'sub.add_argument("--vocab_size", type=int)\n'
        "parser.add_argument('prompt')\n"
        "other('--not-a-flag')\n"
    )
    assert flags_of(script) == {"--verbose", "--vocab_size"}
