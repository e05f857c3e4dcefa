"""Training: tokenizer, packing, optimiser, loop, evaluation, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.models.cross_entropy import chunked_cross_entropy
    from agent_forge.forge.training.averaging import WeightAverage
    from agent_forge.forge.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
    from agent_forge.forge.training.evaluation import Evaluation, HeldOut, evaluate
    from agent_forge.forge.training.experience import Experience, experience_of
    from agent_forge.forge.training.loop import TrainingDiverged, TrainResult, train
    from agent_forge.forge.training.optimizer import MuGrokfast, route
    from agent_forge.forge.training.packing import Batch, PackedRows, encode, pack
    from agent_forge.forge.training.policy import (
        PolicyLoss,
        ValueHead,
        generalised_advantages,
        group_advantages,
        policy_loss,
        step_advantages,
        token_log_probs,
    )
    from agent_forge.forge.training.qk_clip import clip_heads, largest_logits
    from agent_forge.forge.training.reinforce import PromptItem, ReinforceResult, learn_policy
    from agent_forge.forge.training.report import read_log
    from agent_forge.forge.training.sampling import Samples, sample
    from agent_forge.forge.training.schedule import schedule_factor
    from agent_forge.forge.training.settings import (
        PRESETS,
        OptimizerSettings,
        PolicySettings,
        ReinforceSettings,
        TrainSettings,
    )
    from agent_forge.forge.training.tokenizer import SPECIAL_TOKENS, train_tokenizer
    from agent_forge.forge.training.watch import HeldOutScore

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "agent_forge.forge.models.cross_entropy": "chunked_cross_entropy",
        "averaging": "WeightAverage",
        "checkpoint": "checkpoints load_checkpoint save_checkpoint",
        "evaluation": "Evaluation HeldOut evaluate",
        "loop": "TrainingDiverged TrainResult train",
        "optimizer": "MuGrokfast route",
        "packing": "Batch PackedRows encode pack",
        "policy": (
            "PolicyLoss ValueHead generalised_advantages group_advantages policy_loss step_advantages token_log_probs"
        ),
        "qk_clip": "clip_heads largest_logits",
        "experience": "Experience experience_of",
        "reinforce": "PromptItem ReinforceResult learn_policy",
        "report": "read_log",
        "sampling": "Samples sample",
        "schedule": "schedule_factor",
        "settings": "PRESETS OptimizerSettings PolicySettings ReinforceSettings TrainSettings",
        "tokenizer": "SPECIAL_TOKENS train_tokenizer",
        "watch": "HeldOutScore",
    },
)
