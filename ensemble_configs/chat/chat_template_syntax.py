# SPDX-License-Identifier: Apache-2.0
"""The tag that chat templates have beyond Jinja's own."""

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationMarks(Extension):
    """The tag `{% generation %}`, by which training finds the assistant's words; here the words alone count.

    Source: Hugging Face transformers, "Writing a chat template", section on training.
    """

    tags = {"generation"}  # noqa: RUF012  Jinja declares the attribute so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return what stands between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
