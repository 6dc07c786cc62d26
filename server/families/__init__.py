"""The API families, one blueprint each: a body is checked, becomes a generation, and the answer goes back."""

from __future__ import annotations

from ggfw.server.families.anthropic import anthropic
from ggfw.server.families.llama_server import llama_server
from ggfw.server.families.llama_tools import llama_tools
from ggfw.server.families.native import native
from ggfw.server.families.ollama_chat import ollama_chat
from ggfw.server.families.ollama_embed import ollama_embed
from ggfw.server.families.ollama_lists import ollama_lists
from ggfw.server.families.ollama_store import ollama_store
from ggfw.server.families.openai_chat import openai_chat
from ggfw.server.families.openai_completions import openai_completions
from ggfw.server.families.openai_embeddings import openai_embeddings
from ggfw.server.families.openai_models import openai_models
from ggfw.server.families.openai_responses import openai_responses
from ggfw.server.families.service import service
from ggfw.server.openapi import openapi

__all__ = ["FAMILIES"]

#: In the order in which they are mounted.
FAMILIES = (
    service,
    openapi,
    openai_models,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    anthropic,
    ollama_chat,
    ollama_embed,
    ollama_lists,
    ollama_store,
    native,
    llama_server,
    llama_tools,
)
