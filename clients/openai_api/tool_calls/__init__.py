# SPDX-License-Identifier: Apache-2.0
"""A model's text to OpenAI's tool calls and reasoning, as it comes: no HTTP, no engine.

`reader_choice` picks a reader by the chat template; `answer_reader` is what reads an answer.
"""
