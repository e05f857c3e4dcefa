"""Training: tokenizer, packing, optimiser, loop, evaluation, checkpoints."""

from __future__ import annotations

from agent_forge.forge.models.cross_entropy import chunked_cross_entropy
from agent_forge.forge.training.averaging import WeightAverage
from agent_forge.forge.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from agent_forge.forge.training.evaluation import Choice, Evaluation, HeldOut, choice_accuracy, evaluate
from agent_forge.forge.training.loop import TrainingDiverged, TrainResult, train
from agent_forge.forge.training.optimizer import MuGrokfast, route
from agent_forge.forge.training.packing import Batch, PackedRows, encode, pack
from agent_forge.forge.training.presets import PRESETS
from agent_forge.forge.training.qk_clip import clip_heads, largest_logits
from agent_forge.forge.training.report import read_log
from agent_forge.forge.training.schedule import schedule_factor
from agent_forge.forge.training.settings import TrainSettings
from agent_forge.forge.training.tokenizer import SPECIAL_TOKENS, train_tokenizer

__all__ = [
    "PRESETS",
    "SPECIAL_TOKENS",
    "Batch",
    "Choice",
    "Evaluation",
    "HeldOut",
    "MuGrokfast",
    "PackedRows",
    "TrainResult",
    "TrainSettings",
    "TrainingDiverged",
    "WeightAverage",
    "checkpoints",
    "choice_accuracy",
    "chunked_cross_entropy",
    "clip_heads",
    "encode",
    "evaluate",
    "largest_logits",
    "load_checkpoint",
    "pack",
    "read_log",
    "route",
    "save_checkpoint",
    "schedule_factor",
    "train",
    "train_tokenizer",
]
