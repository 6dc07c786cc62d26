"""The API families, one blueprint each. A family checks a body, translates it into a generation, and the answer back."""

from __future__ import annotations

from ggfw.server.families.openai_chat import openai_chat
from ggfw.server.families.openai_models import openai_models
from ggfw.server.families.service import service

__all__ = ["FAMILIES"]

#: In the order in which they are mounted.
FAMILIES = (service, openai_models, openai_chat)
