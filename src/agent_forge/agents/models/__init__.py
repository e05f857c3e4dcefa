"""Model clients: any OpenAI-compatible endpoint, a checkpoint in this process, a recording."""

from agent_forge.agents.models.client import Completion, Message, ModelClient, Stream, ToolCall, Usage, specs_of

__all__ = ["Completion", "Message", "ModelClient", "Stream", "ToolCall", "Usage", "specs_of"]
