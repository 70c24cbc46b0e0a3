# SPDX-License-Identifier: Apache-2.0
"""The error of one line of a batch, with which the job goes on."""


class LineError(Exception):
    """The reason why a line has no answer; it ends up in the line's `error`.

    Args:
        message: what is wrong, what is allowed and the next step.
        code: the kind of error for a program, in snake_case.
        param: the field that is wrong, as it is written in the line.
        status: OpenAI's HTTP status, where the server has refused or failed the line; None: it was never asked.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status = message, code, param, status
