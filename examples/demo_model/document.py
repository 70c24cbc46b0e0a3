# SPDX-License-Identifier: Apache-2.0
"""A training document and its two forms, raw text and chat; what is in it comes from the other modules."""

from dataclasses import dataclass

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, END)

SYSTEM_PROMPT = "You are a helpful assistant."


@dataclass(frozen=True)
class Document:
    """A training document: `prompt` is what a user would send, `completion` what the model answers before `<|eos|>`.

    In raw form the two are simply joined, so `completion` starts with the space that the script of
    its language wants, if any. A document without a prompt is plain text.
    """

    kind: str
    language: str
    prompt: str
    completion: str


def chat_prompt(question: str, *, system: str | None = None) -> str:
    """Return a turn exactly as the tokenizer's chat template renders it after `<|bos|>`."""
    head = f"{SYSTEM}{system}{END}" if system else ""
    return f"{head}{USER}{question}{END}{ASSISTANT}"


def as_chat(document: Document, *, system: str | None = None) -> Document:
    """Return a document's exchange in chat form; an answer after `<|assistant|>` starts without a space."""
    return Document(
        document.kind,
        document.language,
        chat_prompt(document.prompt, system=system),
        document.completion.lstrip(" "),
    )
