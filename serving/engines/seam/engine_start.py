# SPDX-License-Identifier: Apache-2.0
"""The start of an engine's process: launcher, environment, and which process watches over it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from serving.process.returned_memory import without_returned_memory


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, which `serving.engine_process.engine_sources` carries out; by default the process is started as it is."""

    python: str | None = None  # interpreter of an environment that is not the server's; None: the server's
    prefix: tuple[str, ...] = ()  # the launcher's command line, before the engine's own
    environment: dict[str, str] = {}  # added to the server's
    dropped_variables: tuple[str, ...] = ()  # prefixes of names that are left out of the server's environment
    folder_variables: tuple[str, ...] = ()  # where launcher or engine keeps files: a folder that is removed at the end
    left_files: tuple[str, ...] = ()  # in shared memory, that a process leaves at its end; its id is `{pid}`
    is_guarded: bool = False  # the engine has processes of its own, for which a guard process is responsible
    rank_words: tuple[str, ...] = ()  # a process below the engine's with one of these in its command line is a rank
    cpus: tuple[int, ...] | None = None  # for the ranks too; None: as the server
    close_timeout_s: float | None = None  # to end by itself; None: nothing in it takes time

    def under(self, prefix: tuple[str, ...], environment: Mapping[str, str]) -> "EngineStart":
        """Return this start below a launcher."""
        return msgspec.structs.replace(self, prefix=prefix, environment=self.environment | dict(environment))

    def environment_from(self, environ: Mapping[str, str], folder: Path | None = None) -> dict[str, str]:
        """Return the environment of the engine's process.

        Args:
            environ: of the server.
            folder: of this start, for `folder_variables`; None: files lie where the launcher or the engine puts them.
        """
        own = without_returned_memory(environ)
        kept = {name: value for name, value in own.items() if not name.startswith(self.dropped_variables)}
        folders = {} if folder is None else dict.fromkeys(self.folder_variables, str(folder))
        return kept | self.environment | folders
