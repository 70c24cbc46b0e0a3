# SPDX-License-Identifier: Apache-2.0
"""The client of a server: typed requests, chunks and errors over gRPC, async and sync.

Example:
    with TritonClient("localhost:8001") as client:
        for chunk in client.generate(GenerateRequest(text_input="Once upon a time", max_tokens=64, stream=True)):
            print(chunk.text, end="", flush=True)
        found = client.embed(EmbeddingRequest(texts=("Paris",)), model="embed")
"""

from clients.embedding_messages import EmbeddingRequest, Embeddings
from clients.streaming import Access, AsyncTritonClient, GenerateChunk, GenerateRequest, TritonClient

__all__ = [
    "Access",
    "AsyncTritonClient",
    "EmbeddingRequest",
    "Embeddings",
    "GenerateChunk",
    "GenerateRequest",
    "TritonClient",
]
