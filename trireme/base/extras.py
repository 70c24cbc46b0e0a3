# SPDX-License-Identifier: Apache-2.0
"""The command that installs an optional part of the project, for errors about a missing package.

It does not say `trireme[...]`: on the public index that name is somebody else's, whose package would shadow this one.
"""

import re
from importlib.metadata import requires

from trireme.base.project_files import CODE_ROOT, IS_CHECKOUT


def how_to_install(extra: str) -> str:
    """Return the command for the packages of an extra of pyproject.toml; "" stands for what every part needs."""
    if IS_CHECKOUT:
        return f"pip install '{CODE_ROOT}[{extra}]'" if extra else f"pip install '{CODE_ROOT}'"
    return "pip install " + " ".join(f"'{wanted}'" for wanted in _wanted(extra))


def _wanted(extra: str) -> list[str]:
    """Return the requirements of an extra, as the installed package's metadata has them."""
    found = []
    for line in requires("trireme") or []:
        wanted, _, marker = line.partition(";")
        named = re.search(r"""extra == ['"]([^'"]+)""", marker)
        if (named[1] if named else "") == extra:
            found.append(wanted.strip())
    return found
