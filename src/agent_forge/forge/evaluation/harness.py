"""Our checkpoints, packed ones too, in EleutherAI's lm-evaluation-harness.

    from agent_forge.forge.evaluation.harness import harness_model
    lm_eval.simple_evaluate(model=harness_model("OUT"), tasks=["piqa"])

The harness is imported when `harness_model` is called; the arithmetic here does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from agent_forge.context_length import context_length
from agent_forge.errors import UsageError
from agent_forge.forge.evaluation.choices import score_rows, split
from agent_forge.forge.evaluation.generation import write_answers
from agent_forge.forge.evaluation.text import device_of, token_scores
from agent_forge.forge.training.packing import Batch

LONGEST_PIECE = 1024


class Answers:
    """The three methods that the harness calls. A request carries its arguments in `args`."""

    def __init__(self, model: Any, tokenizer: Any, batch: int = 16) -> None:
        super().__init__()
        self.model, self.tokenizer, self.batch = model.eval(), tokenizer, batch
        begins = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        self.first = next((token for token in begins if token is not None), None)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation, whether greedy decoding would write it)."""
        arguments = [request.args for request in requests]
        pairs = [split(self.tokenizer, context, text, self.first) for context, text in arguments]
        losses, greedy = score_rows(self.model, pairs, self.batch)
        return [(-float(loss), bool(same)) for loss, same in zip(losses, greedy, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text, read in pieces as long as the model can read, each
        from BOS."""
        return [self._rolling(request.args[0]) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes greedily, up to the first of `until`."""
        answers = []
        for request in requests:
            prompt, options = request.args
            if options.get("do_sample"):
                raise UsageError("the harness gets greedy generation only", fix="Set do_sample to false")
            stop = options.get("until") or []
            stops = [stop] if isinstance(stop, str) else stop
            most = int(options.get("max_gen_toks", 256))
            answers.extend(write_answers(self.model, self.tokenizer, [prompt], most, stops))
        return answers

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def _rolling(self, text: str) -> float:
        tokens = self._tokens(text)
        most = min(context_length(self.model.config) or LONGEST_PIECE, LONGEST_PIECE)
        first, total = 0 if self.first is None else self.first, 0.0
        for start in range(0, len(tokens), most):
            piece = torch.tensor([[first, *tokens[start : start + most]]])
            batch = Batch(piece[:, :-1], piece[:, 1:], torch.zeros_like(piece[:, 1:]))
            total -= float(token_scores(self.model, batch.to(device_of(self.model)))[0].double().sum())
        return total


def harness_model(folder: str | Path, batch: int = 16, device: str | None = None) -> Any:
    """The checkpoint in `folder` as a model of the harness. Raises UsageError where lm-eval is not
    installed."""
    try:
        from lm_eval.api.model import LM  # type: ignore[import-not-found]
    except ImportError as error:
        raise UsageError("lm-eval is not installed", fix="pip install lm-eval") from error
    from agent_forge.inference.loading import load_model, load_tokenizer

    class ForgeModel(Answers, LM):  # type: ignore[misc]
        pass

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return ForgeModel(load_model(folder).to(device), load_tokenizer(folder), batch)
