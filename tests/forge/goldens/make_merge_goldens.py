"""Makes merge.safetensors: what mergekit 0.1.5 computes in float32 on small models, and the masks that it drew.

    /path/to/python/with/mergekit tests/forge/goldens/make_merge_goldens.py

The recipes are in merge_recipes.yaml; `{a}` and the like stand for the folders of the models.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import yaml
from mergekit.config import MergeConfiguration
from mergekit.merge import run_merge
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.options import MergeOptions
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
MODELS = ("base", "a", "b", "c")
CONFIG = LlamaConfig(
    vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=1, tie_word_embeddings=False,
)  # fmt: skip


def write_models(folder: Path) -> None:
    torch.manual_seed(7)
    base = LlamaForCausalLM(CONFIG)
    for name in MODELS:
        model = LlamaForCausalLM(CONFIG)
        model.load_state_dict(base.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * (0.0 if name == "base" else 0.01))
        model.save_pretrained(folder / name)


def main() -> None:
    drawn: list[tuple[str, torch.Tensor]] = []
    draw, execute = torch.bernoulli, ExecuteMergeMethodTask.execute
    now = ""

    def recorded(probabilities: torch.Tensor) -> torch.Tensor:
        drawn.append((now, draw(probabilities)))
        return drawn[-1][1]

    def named(self: ExecuteMergeMethodTask, **given: object) -> object:
        nonlocal now
        now = self.output_weight.name
        return execute(self, **given)

    torch.bernoulli, ExecuteMergeMethodTask.execute = recorded, named
    found: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_models(folder)
        for name in MODELS:
            found |= {f"{name}/{key}": value for key, value in load_file(folder / name / "model.safetensors").items()}
        for name, recipe in yaml.safe_load((HERE / "merge_recipes.yaml").read_text()).items():
            text = yaml.safe_dump(recipe)
            for model in MODELS:
                text = text.replace("{" + model + "}", str(folder / model))
            drawn.clear()
            torch.manual_seed(3)
            config = MergeConfiguration.model_validate(yaml.safe_load(text))
            options = MergeOptions(copy_tokenizer=False, write_model_card=False, quiet=True, random_seed=3)
            run_merge(config, str(folder / "out" / name), options)
            for shard in (folder / "out" / name).glob("*.safetensors"):
                found |= {f"{name}/{key}": value for key, value in load_file(shard).items()}
            for number, (tensor, mask) in enumerate(drawn):  # the models of a tensor, one after the other
                found[f"{name}/mask/{tensor}/{number}"] = mask.to(torch.bool)
    save_file(found, str(HERE / "merge.safetensors"))
    print(len(found), "tensors,", (HERE / "merge.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
