"""What the learning pass of a policy keeps for its gradient: activations, but neither logits nor a mask per layer."""

from __future__ import annotations

import torch
from tests_policy_toys import tiny_llama

from agent_forge.forge.training.policy import token_log_probs
from agent_forge.forge.training.shared_prompts import share_prompts, sheet_width


def saved_bytes(model: torch.nn.Module, tokens: torch.Tensor, mask: torch.Tensor) -> int:
    """Bytes of the storages that autograd keeps, each counted once, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, or an address could be used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        log_probs = token_log_probs(model, tokens, mask)
    assert log_probs.requires_grad
    return sum(storage.nbytes() for address, storage in kept.items() if address not in weights)


def group(copies: int, prompt: int, answer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Answers to one prompt, and the mask of the answers."""
    tokens, mask = torch.randint(16, (copies, prompt + answer)), torch.ones(copies, prompt + answer)
    tokens[:, :prompt], mask[:, :prompt] = tokens[0, :prompt], 0.0
    return tokens, mask


def test_what_is_kept_does_not_grow_with_the_vocabulary():
    rows = group(16, 4, 60)
    small, large = (saved_bytes(tiny_llama(vocab), *rows) for vocab in (16, 49_152))
    assert large < 1.1 * small  # the logits of 960 tokens would be 188 MB beside 5 MB of activations


def test_a_layer_keeps_no_mask_of_its_own():
    tokens, mask = group(8, 200, 16)
    batch, _ = share_prompts(tokens, mask, sheet_width(tiny_llama()))
    assert len(batch) == 1  # one sheet: the prompt once

    def layer(tokens: torch.Tensor, mask: torch.Tensor) -> int:
        few, many = (saved_bytes(tiny_llama(num_hidden_layers=layers), tokens, mask) for layers in (1, 3))
        return (many - few) // 2

    plain = layer(batch.inputs, torch.ones_like(batch.inputs).float())  # as many tokens as one row, without a mask
    assert layer(tokens, mask) < 1.25 * plain
