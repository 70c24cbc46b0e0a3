# SPDX-License-Identifier: Apache-2.0
"""A stand-in of upstream's `trtllm-llmapi-launch` without TensorRT-LLM: the place of each rank, and the order of ends.

As upstream's does, at rank 0 it splits the server's command at white space, runs it in the background without MPI's
environment, and waits in the foreground for somebody to tell the ranks to end, which happens behind a server that has
ended well; all other ranks wait for that. In place of MPI's messages there is a file in a folder that all nodes see.
"""

import shlex
from pathlib import Path

_SCRIPT = """\
#!/bin/bash
set -e
cd {records}
rank=$OMPI_COMM_WORLD_RANK
echo "$OMPI_COMM_WORLD_SIZE $(hostname) $OMPI_COMM_WORLD_LOCAL_RANK $$" > rank$rank.new
for name in $(compgen -e); do printf '%s=%s\\0' "$name" "${{!name}}"; done > environ$rank
mv rank$rank.new rank$rank
cd - > /dev/null
if [ "$rank" = 0 ]; then
    (
        for name in $(compgen -e OMPI_) $(compgen -e PMIX_); do unset "$name"; done
        export TLLM_SPAWN_PROXY_PROCESS=1 TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=tcp://127.0.0.1:10012
        $*
        touch {records}/end
    ) &
fi
until [ -e {records}/end ]; do sleep 0.1; done
"""


def write_launch_script(folder: Path, *, records: Path) -> None:
    """Make it a program in `folder`; each rank writes `rankN` into `records`: size, host, local rank and process."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "trtllm-llmapi-launch"
    program.write_text(_SCRIPT.format(records=shlex.quote(str(records))))
    program.chmod(0o755)
