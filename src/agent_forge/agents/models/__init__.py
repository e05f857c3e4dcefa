"""Model clients: any OpenAI-compatible endpoint, a checkpoint in this process, a recording."""

from agent_forge.agents.models.client import (
    ChatClient,
    Completion,
    Message,
    ModelClient,
    Request,
    CompletionStream,
    ToolCall,
    TokenUsage,
    specs_of,
)
from agent_forge.agents.models.openai_compatible import OpenAICompatible
from agent_forge.agents.models.recorded import MissingRecording, Recorded, Recording
from agent_forge.agents.models.resolve import model
from agent_forge.agents.models.tracing import current_recorder, use_recorder
from agent_forge.agents.models.wire import BrokenStream

__all__ = [
    "BrokenStream",
    "ChatClient",
    "Completion",
    "Message",
    "MissingRecording",
    "ModelClient",
    "OpenAICompatible",
    "Recorded",
    "Recording",
    "Request",
    "CompletionStream",
    "ToolCall",
    "TokenUsage",
    "current_recorder",
    "model",
    "specs_of",
    "use_recorder",
]
