"""Random packed folders, written with numpy alone, straight from the description of the format in docs/packed.md."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.inference.packed.layout import LIMITS, ROWS, PackedShape, pack

TYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int16": "I16", "uint8": "U8"}
BITS = {"float32": np.int32, "float16": np.int16}


class FolderWriter:
    """Collects the arrays of a model, and writes them."""

    def __init__(self, seed: int, *, kind: str, group: int | None, half: bool, embedding: str | None) -> None:
        self.draw = np.random.default_rng(seed)
        self.kind, self.group, self.half, self.embedding = kind, group, half, embedding
        self.arrays: dict[str, Any] = {}
        self.packing: dict[str, Any] = {"quant_method": "agent_forge_packed", "format": 1, "activations": "int8"}
        self.packing |= {"head_activations": "int8", "matrices": {}, "embeddings": {}, "heads": {}}

    def floats(self, name: str, *shape: int, kind: str = "float32") -> None:
        self.arrays[name] = self.draw.normal(0, 0.3, shape).astype(kind)

    def gains(self, name: str, size: int) -> None:
        self.arrays[name] = self.draw.uniform(0.5, 1.5, size).astype(np.float32)

    def packed(self, name: str, rows: int, columns: int, *, bias: bool = False, **changes: Any) -> None:
        """A linear layer of random integers with random scales."""
        kind, group, where = (
            changes.get("kind", self.kind),
            changes.get("group", self.group),
            changes.get("to", "matrices"),
        )
        shape = PackedShape(kind, rows, columns, min(group or columns, columns))
        choices = (-3, -1, 1, 3) if kind == "4level" else range(LIMITS[kind][0], LIMITS[kind][1] + 1)
        values = self.draw.choice(np.array(choices), (rows, columns))
        scale = "float16" if self.half else "float32"
        scales = np.zeros((shape.groups, shape.tiles * ROWS), scale)
        size = np.abs(values).mean() * columns**0.5
        scales[:, :rows] = self.draw.uniform(0.3, 1.2, (shape.groups, rows)) / size
        self.arrays[f"{name}.packed"] = pack(values, shape)
        self.arrays[f"{name}.scales"] = scales.view(BITS[scale])
        entry = {"kind": kind, "rows": rows, "columns": columns, "group": shape.group, "scales": scale}
        if bias:
            self.floats(f"{name}.bias", rows)
            entry["bias"] = True
        self.packing[where][name] = entry

    def words(self, rows: int, columns: int, *, tied: bool) -> None:
        """The embedding and the head."""
        table = "model.embed_tokens"
        if self.embedding in ("int8", "int4"):
            group = 32 if self.embedding == "int4" else None
            self.packed(table, rows, columns, kind=self.embedding, group=group, to="embeddings")
            self.arrays[f"{table}.like"] = np.empty(0, np.float32)
            if tied:
                self.packing["heads"]["lm_head"] = table
            else:
                self.packed("lm_head", rows, columns, kind=self.embedding, group=group)
            return
        kind = "float16" if self.embedding == "fp16" else "float32"
        self.floats(f"{table}.weight", rows, columns, kind=kind)
        if not tied:
            self.floats("lm_head.weight", rows, columns, kind=kind)

    def write(self, folder: Path, config: dict[str, Any]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_safetensors(folder / "model.safetensors", self.arrays)
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self.packing["files"] = {"model.safetensors": digest}
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": self.packing}))
        return folder


def write_safetensors(file: Path, arrays: dict[str, Any]) -> None:
    header, at = {}, 0
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    for name in order:
        array = arrays[name]
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape)}
        header[name]["data_offsets"] = [at, at + array.nbytes]
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(arrays[name].tobytes() for name in order))


def llama_folder(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random Llama. `changes`: tied, bias, kind, group, half, embedding, and whatever config.json may say."""
    tied, bias = changes.pop("tied", True), changes.pop("bias", False)
    how = {"kind": "2bit", "group": None, "half": False, "embedding": "int8"}
    writer = FolderWriter(seed, **{name: changes.pop(name, default) for name, default in how.items()})
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 101, "hidden_size": 48,
        "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "attention_bias": bias,
        "mlp_bias": bias, "tie_word_embeddings": tied, "dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    config |= changes
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    writer.words(config["vocab_size"], width, tied=tied)
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        for part, rows, columns in (("q", query, width), ("k", key, width), ("v", key, width), ("o", width, query)):
            writer.packed(f"{at}self_attn.{part}_proj", rows, columns, bias=bias)
        for part, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            writer.packed(f"{at}mlp.{part}_proj", rows, columns, bias=bias)
        writer.gains(f"{at}input_layernorm.weight", width)
        writer.gains(f"{at}post_attention_layernorm.weight", width)
    writer.gains("model.norm.weight", width)
    return writer.write(folder, config)


def cognate_folder(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random Cognate."""
    how = {"kind": "2bit", "group": None, "half": False, "embedding": "int8"}
    writer = FolderWriter(seed, **{name: changes.pop(name, default) for name, default in how.items()})
    config = {
        "model_type": "cognate", "architectures": ["CognateForCausalLM"], "vocab_size": 64, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64,
        "embedding_rank": 16, "memory_layers": [1], "memory_heads": 2, "memory_head_dim": 8, "sliding_window": 12,
        "qk_norm": True, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_scale": None, "loops": 1, "cycles": 1,
        "latent_steps": 0, "memory_momentum": False, "halting": False, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "dtype": "float32",
    }  # fmt: skip
    config |= changes
    width, rank = config["hidden_size"], config["embedding_rank"]
    head = width // config["num_attention_heads"]
    writer.words(config["vocab_size"], rank, tied=True)
    if rank < width:
        writer.packed("model.embed_up", width, rank)
        writer.packed("head_down", rank, width)
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        writer.packed(f"{at}attention.qkv_proj", width + 2 * config["num_key_value_heads"] * head, width)
        writer.packed(f"{at}o_proj", width, width)
        writer.packed(f"{at}up_proj", config["intermediate_size"], width)
        writer.packed(f"{at}down_proj", width, config["intermediate_size"])
        if number in config["memory_layers"]:
            inner = config["memory_heads"] * config["memory_head_dim"]
            writer.packed(f"{at}memory.qkv_proj", 3 * inner, width)
            writer.packed(f"{at}memory.out_proj", width, inner)
            writer.floats(f"{at}memory.rates.weight", 2 * config["memory_heads"], width)
            writer.floats(f"{at}memory.rates.bias", 2 * config["memory_heads"])
            writer.gains(f"{at}memory.attention_gain", width)
            writer.gains(f"{at}memory.memory_gain", width)
    return writer.write(folder, config)


def byte_tokenizer(folder: Path, template: str | None = None) -> Path:
    """A tokenizer with a token for every byte, in the order of the bytes, and one that ends the text: <|end|>, 256."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    table = _byte_letters()
    tokenizer = Tokenizer(models.BPE({table[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def _byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def random_folder(folder: Path, seed: int) -> Path:
    """A model of random shape: grouped queries, biases, tied or not, every layout and embedding."""
    draw = np.random.default_rng(seed)
    pick = lambda *choices: choices[draw.integers(len(choices))]  # noqa: E731
    how = {"kind": pick("2bit", "1.6bit", "4level"), "embedding": pick("int8", "int4", "fp16", None)}
    how |= {"group": pick(None, 16, 40), "half": pick(True, False), "num_hidden_layers": pick(1, 2, 3), "seed": seed}
    how |= {"vocab_size": int(draw.integers(60, 300)), "intermediate_size": int(draw.integers(10, 150))}
    groups, shared, width = pick(1, 2, 3), pick(1, 2, 4), pick(4, 8, 16, 20)
    how |= {"num_attention_heads": groups * shared, "num_key_value_heads": groups}
    if pick(True, False, False):
        how |= {"hidden_size": groups * shared * width, "embedding_rank": groups * shared * width // pick(1, 2)}
        how |= {"sliding_window": pick(4, 16, 64), "qk_norm": pick(True, False), "memory_layers": pick([], [0])}
        return cognate_folder(folder, **how)
    how |= {"head_dim": width, "hidden_size": groups * shared * pick(width, 6, 13)}
    return llama_folder(folder, tied=pick(True, False), bias=pick(True, False), **how)
