"""How a model is run: clients of OpenAI-compatible endpoints, models in this process, the batching engine, the packed
decoder. It imports no other room."""

from agent_forge.inference.chat import ChatClient, current_recorder, use_recorder
from agent_forge.inference.client import (
    Completion,
    CompletionStream,
    Message,
    ModelClient,
    Request,
    TokenUsage,
    ToolCall,
)
from agent_forge.inference.openai_compatible import OpenAICompatible
from agent_forge.inference.recorded import MissingRecording, Recorded, Recording
from agent_forge.inference.resolve import model
from agent_forge.inference.wire import BrokenStream

__all__ = [
    "BrokenStream",
    "ChatClient",
    "Completion",
    "CompletionStream",
    "Message",
    "MissingRecording",
    "ModelClient",
    "OpenAICompatible",
    "Recorded",
    "Recording",
    "Request",
    "TokenUsage",
    "ToolCall",
    "current_recorder",
    "model",
    "use_recorder",
]
