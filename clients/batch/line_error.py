# SPDX-License-Identifier: Apache-2.0
"""Why one line of a batch has no answer; the job goes on."""


class LineError(Exception):
    """It ends up in the line's `error`.

    Args:
        message: what is wrong, what is allowed and the next step.
        code: for a program, in snake_case.
        param: the field it is about, as it is written in the line.
        status: as OpenAI's HTTP would have it, where the server has refused or failed it; None: it was never asked.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status = message, code, param, status
