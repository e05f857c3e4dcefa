"""A model of SmolLM2's shape, small enough for a test, that knows one conversation by heart.

Its layers are random ternary matrices, so that it can be packed without any loss. Its head is the least-squares
solution that maps the hidden state before each token of the answers to that token: there are more dimensions than
tokens, so the fit is exact, and no training is needed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agents_tiny_model import tiny_tokenizer

from agent_forge import Agent, tool
from agent_forge.agents.profiles import AgentLimits, AgentProfile
from agent_forge.inference import ChatClient, Completion, Request, ToolCall

WIDTH = 256
QUESTION = "How warm is Oslo, in F?"
PROFILE = AgentProfile(name="ada", limits=AgentLimits(answer_tokens=120))
TURNS: list[Any] = [("temperature", {"city": "Oslo"}), ("convert", {"degrees": 4.5}), "40.1 F"]


@tool
def temperature(city: str) -> float:
    """Degrees Celsius."""
    return {"Oslo": 4.5}[city]


@tool
def convert(degrees: float) -> float:
    """Celsius to Fahrenheit."""
    return round(degrees * 9 / 5 + 32, 1)


class Teacher(ChatClient):
    """Does the task as it should be done, and keeps what it was asked."""

    name = "teacher"
    provider = "test"

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def answer(self, request: Request) -> Completion:
        self.requests.append(request)
        turn = TURNS[len(self.requests) - 1]
        if isinstance(turn, str):
            return Completion(turn, self.name)
        return Completion("", self.name, tool_calls=(ToolCall("c", *turn),))

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        yield await self.answer(request)


def taught_folders(place: Path) -> dict[str, Path]:
    """A small model that knows the three turns of the task, as a plain folder and packed."""
    from agent_forge.inference.prompt import chat_prompt

    teacher, tokenizer = Teacher(), tiny_tokenizer()
    assert Agent(PROFILE, [temperature, convert], teacher, record=False).run(QUESTION).answer == TURNS[-1]
    pairs = []
    for request, turn in zip(teacher.requests, TURNS, strict=True):
        call = turn if isinstance(turn, str) else json.dumps({"name": turn[0], "arguments": turn[1]})
        text = call if isinstance(turn, str) else f"<tool_call>{call}</tool_call>"
        answer = [*tokenizer.encode(text), tokenizer.eos_token_id]
        pairs.append((chat_prompt(tokenizer, request.messages, request.tools), answer))
    model, ternary = taught(pairs)
    return {"plain": save(model, place / "plain"), "packed": save(model, place / "packed", ternary)}


def taught(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[Any, dict[str, Any]]:
    """(model, its ternary weights by layer). The model continues each prompt with its answer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_forge.inference.packed import TernaryWeight

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, rope_theta=100_000.0, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=256, pad_token_id=256, initializer_range=1.0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ternary = {}
    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            trits = torch.randint(-1, 2, layer.weight.shape, dtype=torch.int8)
            scale = torch.full((layer.out_features, 1), float(layer.in_features) ** -0.5).half().float()
            ternary[f"model.{name}"] = weight = TernaryWeight(trits, scale, layer.in_features)
            layer.weight.data = weight.dense()
    states, targets = [], []
    with torch.no_grad():
        for prompt, answer in pairs:
            hidden = model.model(torch.tensor([prompt + answer])).last_hidden_state[0]
            states.append(hidden[len(prompt) - 1 : -1])
            targets += answer
        known = torch.cat(states).double()  # (tokens, width)
        assert len(targets) < WIDTH, "more tokens to learn than dimensions to hold them"
        wanted = torch.nn.functional.one_hot(torch.tensor(targets), 257).double()
        model.lm_head.weight.data = torch.linalg.lstsq(known, wanted).solution.T.float().contiguous()
    return model, ternary


def save(model: Any, folder: Path, ternary: dict[str, Any] | None = None) -> Path:
    """The model as a plain folder, or with its ternary layers packed."""
    from agent_forge.inference.packed import save_packed

    if ternary is None:
        model.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
    else:
        save_packed(model, folder, ternary=ternary, embedding=None, activations=None, tokenizer=tiny_tokenizer())
    return folder
