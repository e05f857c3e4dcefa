"""Training: tokenizer, packing, optimiser, loop, evaluation, checkpoints."""

from __future__ import annotations

from agent_forge.forge.models.cross_entropy import chunked_cross_entropy
from agent_forge.forge.training.averaging import WeightAverage
from agent_forge.forge.training.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from agent_forge.forge.training.evaluation import Evaluation, HeldOut, evaluate
from agent_forge.forge.training.loop import TrainingDiverged, TrainResult, train
from agent_forge.forge.training.optimizer import MuGrokfast, route
from agent_forge.forge.training.packing import Batch, PackedRows, encode, pack
from agent_forge.forge.training.qk_clip import clip_heads, largest_logits
from agent_forge.forge.training.report import read_log
from agent_forge.forge.training.schedule import schedule_factor
from agent_forge.forge.training.settings import PRESETS, OptimizerSettings, TrainSettings
from agent_forge.forge.training.tokenizer import SPECIAL_TOKENS, train_tokenizer

__all__ = [
    "PRESETS",
    "SPECIAL_TOKENS",
    "Batch",
    "Evaluation",
    "HeldOut",
    "MuGrokfast",
    "OptimizerSettings",
    "PackedRows",
    "TrainResult",
    "TrainSettings",
    "TrainingDiverged",
    "WeightAverage",
    "checkpoints",
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
