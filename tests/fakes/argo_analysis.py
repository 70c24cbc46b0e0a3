# SPDX-License-Identifier: Apache-2.0
"""Argo Rollouts' reading of a metric of an AnalysisTemplate, written anew from its documentation and behaviour.

Conditions are of expr-lang, for which no engine is installed here: this reads the part of it that is used (`&&`, `||`,
`!`, `==`, `>`, `in`, brackets, lists, strings, numbers, `result.name`), and refuses everything else.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_TOKEN = re.compile(r'\s*(&&|\|\||==|>|!|\(|\)|\[|\]|,|"[^"\\]*"|\d+|[A-Za-z_][A-Za-z_.]*)')


def evaluate(expression: str, result: Mapping[str, Any]) -> bool:
    """Return the value of a condition on a measurement's result.

    Raises:
        ValueError: the condition has something that is not known here, as Argo would err.
    """
    tokens, position = [], 0
    while position < len(expression.rstrip()):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"{expression[position:]!r}")
        tokens.append(match[1])
        position = match.end()
    reader = _Reader(tokens, result)
    found = reader.either()
    if reader.tokens or not isinstance(found, bool):
        raise ValueError(f"{expression!r} is no condition")
    return found


class _Reader:
    """A reader by precedence, the loosest first: `||`, `&&`, comparisons, `!`."""

    def __init__(self, tokens: list[str], result: Mapping[str, Any]) -> None:
        self.tokens = tokens
        self._result = result

    def _take(self, *wanted: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else None

    def either(self) -> Any:
        found = self._both()
        while self._take("||"):
            right = self._both()
            found = _boolean(found) or _boolean(right)
        return found

    def _both(self) -> Any:
        found = self._compared()
        while self._take("&&"):
            right = self._compared()
            found = _boolean(found) and _boolean(right)
        return found

    def _compared(self) -> Any:
        left = self._value()
        operator = self._take("==", ">", "in")
        if operator is None:
            return left
        right = self._value()
        match operator:
            case "==":
                return left == right
            case ">":
                return left > right
        return left in right

    def _value(self) -> Any:
        token = self.tokens.pop(0)
        if token == "!":
            return not _boolean(self._value())
        if token == "(":
            found = self.either()
            assert self._take(")")
            return found
        if token == "[":
            values = []
            while not self._take("]"):
                values.append(self._value())
                self._take(",")
            return values
        if token.startswith('"'):
            return token[1:-1]
        if token.isdecimal():
            return float(token)  # as JSON's numbers are there
        name = token.removeprefix("result.")
        if name == token or name not in self._result:
            raise ValueError(f"{token!r} is not known")
        return self._result[name]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is no boolean")  # noqa: TRY004 - one error for whatever Argo would err at
    return value


def run_phase(
    metric: Mapping[str, Any],
    measured: Iterable[Mapping[str, Any] | None],
    args: Mapping[str, str],
    *,
    knows_consecutive_success: bool = True,
) -> str:
    """Return the end of a run of one metric, or `Running` if it has not ended.

    Ends are `Successful`, `Failed`, `Inconclusive` and `Error`.

    Args:
        metric: as the AnalysisTemplate has it.
        measured: what the provider answers, one measurement after the other; None: nothing, which is an error.
        args: values of the template's arguments.
        knows_consecutive_success: Argo from 1.8 on.
    """
    texts = [re.sub(r"{{args\.(\w+)}}", lambda found: args[found[1]], metric[f"{kind}Condition"]) for kind in ("success", "failure")]  # fmt: skip  # noqa: E501
    num_failed = num_inconclusive = num_in_row = num_errors_in_row = count = 0
    for result in measured:
        if result is None:
            num_errors_in_row, num_in_row = num_errors_in_row + 1, 0
            if num_errors_in_row > metric["consecutiveErrorLimit"]:
                return "Error"
            continue
        is_good, is_bad = (evaluate(text, result) for text in texts)
        num_errors_in_row, count = 0, count + 1
        num_failed += is_bad
        num_inconclusive += not is_bad and not is_good
        num_in_row = num_in_row + 1 if is_good and not is_bad else 0
        if num_inconclusive > metric["inconclusiveLimit"]:
            return "Inconclusive"
        if num_failed > metric["failureLimit"]:
            return "Failed"
        if knows_consecutive_success and num_in_row >= metric["consecutiveSuccessLimit"]:
            return "Successful"
        if count >= metric["count"]:
            return "Inconclusive" if knows_consecutive_success else "Successful"
    return "Running"
