"""MuGrokfast against torch's own optimisers, and against the faults of the optimiser it replaces."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_forge_axes import tiny_config
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from agent_forge.errors import UsageError
from agent_forge.forge.adapters import LoraLinear
from agent_forge.forge.models import CognateForCausalLM
from agent_forge.forge.models.attention import _blocks, _largest_logits, attention_mask, rotate
from agent_forge.forge.training import PRESETS, MuGrokfast, clip_heads, largest_logits, route
from agent_forge.forge.training.checkpoint import optimizer_tensors, restore_optimizer
from agent_forge.forge.training.muon import muon_step, orthogonalize, shape_factor


class Net(nn.Module):
    """A word matrix, a wide, a tall and a square matrix, gains and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 32)
        self.wide, self.tall, self.square = nn.Linear(64, 32), nn.Linear(32, 64), nn.Linear(32, 32)
        self.gate = nn.Linear(32, 3)
        self.gain = nn.Parameter(torch.ones(32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.square(self.wide(self.tall(self.words(ids)).tanh())) * self.gain
        return (h @ self.words.weight.T).logsumexp(-1).mean() + self.gate(h).square().mean()


def run(net: Net, *optimizers: torch.optim.Optimizer, steps: int = 6) -> Net:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        net(torch.randint(0, 40, (8, 5), generator=generator)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return net


def twins() -> tuple[Net, Net]:
    torch.manual_seed(3)
    first, second = Net(), Net()
    second.load_state_dict(first.state_dict())
    return first, second


@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_with_the_extras_off_it_is_torch_muon_and_adamw(rule, nesterov):
    ours, theirs = twins()
    matrices = [theirs.wide.weight, theirs.tall.weight, theirs.square.weight]
    rest = [p for p in theirs.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=nesterov, adjust_lr_fn=rule)
    # fused as ours is: Newton-Schulz in bf16 would magnify another rounding
    adam = torch.optim.AdamW(rest, lr=0.003, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True)
    combined = MuGrokfast(
        ours,
        lr=0.02,
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr=rule,
        ns_dtype=torch.bfloat16,
        embedding_lr=0.003,
        scalar_lr=0.003,
        adam_weight_decay=0.01,
    )
    run(ours, combined)
    run(theirs, muon, adam)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        # what torch.optim.Muon rounds to bf16 are updates of about lr * factor / sqrt(32) a step
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


def test_the_adamw_control_is_adamw_for_everything():
    ours, theirs = twins()
    settings = {"lr": 0.003, "embedding_lr": 0.003, "scalar_lr": 0.003, "weight_decay": 0.01}
    run(ours, MuGrokfast(ours, matrix_rule="adamw", adam_weight_decay=0.01, **settings))
    run(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.003, betas=(0.9, 0.95), weight_decay=0.01))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_gradient_in_another_order_of_memory():
    ours, theirs = (nn.Linear(32, 16, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    gradient = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    ours.weight.grad, theirs.weight.grad = gradient.T, gradient.T.contiguous()
    MuGrokfast(ours, matrix_rule="adamw", lr=0.003, weight_decay=0.01).step()
    torch.optim.AdamW(theirs.parameters(), lr=0.003, betas=(0.9, 0.95), weight_decay=0.01).step()
    torch.testing.assert_close(ours.weight, theirs.weight)


@pytest.mark.parametrize("shape", [(32, 96), (96, 32), (48, 48), (3, 16, 64), (200, 16)])
def test_five_newton_schulz_steps_orthogonalise_tall_and_wide(shape):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(*shape)))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_the_shape_factors_are_torchs():
    from torch.optim._muon import _adjust_lr

    for rule in ("original", "match_rms_adamw"):
        for rows, columns in ((64, 32), (32, 64), (50, 50)):
            assert shape_factor(rows, columns, rule) == pytest.approx(
                _adjust_lr(1.0, rule, torch.Size((rows, columns)))
            )


def test_a_fused_matrix_is_treated_block_by_block():
    weight, grad = torch.randn(48, 32), torch.randn(48, 32)
    settings = {
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.1,
        "nesterov": True,
        "ns_steps": 5,
        "adjust_lr": "original",
    }
    fused, parts = weight.clone(), [part.clone() for part in weight.split([16, 32])]
    muon_step([fused], [grad], [torch.zeros_like(fused)], [(16, 32)], **settings)
    for part, g in zip(parts, grad.split([16, 32]), strict=True):
        muon_step([part], [g], [torch.zeros_like(part)], [(part.shape[0],)], **settings)
    torch.testing.assert_close(fused, torch.cat(parts))


class TestRouting:
    def test_cognate(self, tiny):
        model = tiny(loops=2, halting=True)
        routes = {name: kind for kind, named in route(model).items() for name, _ in named}
        assert set(routes) == {name for name, _ in model.named_parameters()}
        assert routes["model.embed_tokens.weight"] == "embedding"
        assert "lm_head.weight" not in routes  # tied: it is the embedding
        assert routes["model.layers.0.attention.qkv_proj.weight"] == "matrix"
        assert routes["model.layers.1.memory.memory_gain"] == "scalar"
        assert routes["model.layers.1.memory.rates.weight"] == "scalar"
        assert routes["model.halting.weight"] == "scalar"

    def test_any_hugging_face_model(self):
        config = LlamaConfig(
            vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
        )
        routes = route(LlamaForCausalLM(config))
        assert {name for name, _ in routes["embedding"]} == {"model.embed_tokens.weight", "lm_head.weight"}
        assert len(routes["matrix"]) == 7
        assert all(p.dim() == 1 for _, p in routes["scalar"])

    def test_frozen_parameters_are_left_alone(self):
        net = Net()
        net.tall.requires_grad_(False)
        before = net.tall.weight.clone()
        run(net, MuGrokfast(net))
        assert torch.equal(before, net.tall.weight)


def test_the_schedule_reaches_every_group():
    """In the optimiser this replaces, the scheduler set a field that the step did not read."""
    net = Net()
    optimizer = MuGrokfast(net)
    before = {name: p.clone() for name, p in net.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    run(net, optimizer)
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())


class TestGrokfast:
    def one_weight(self, **settings) -> tuple[nn.Linear, MuGrokfast]:
        layer = nn.Linear(1, 1, bias=False)
        return layer, MuGrokfast(layer, **settings)

    @pytest.mark.parametrize(("coefficient", "expected"), [(2.0, 3.0), (0.3, 1.3), (-2 / 3, 1 / 3)])
    def test_a_steady_gradient_grows_by_the_coefficient(self, coefficient, expected):
        """g + lambda EMA(g) of a constant 1 is 1 + lambda. The inverted filter gave 1.005 for lambda 2."""
        layer, optimizer = self.one_weight(grokfast=coefficient)
        layer.weight.grad = torch.ones(1, 1)
        for _ in range(3):
            (filtered,) = optimizer._filter([layer.weight], optimizer.param_groups[0])
            assert filtered.item() == pytest.approx(expected)

    def test_it_amplifies_the_slow_part_alone(self):
        layer, optimizer = self.one_weight(grokfast=2.0, grokfast_decay=0.9)
        slow = None
        for step in range(20):
            gradient = 1.0 + (-1) ** step * 5.0
            slow = gradient if slow is None else 0.9 * slow + 0.1 * gradient
            layer.weight.grad = torch.full((1, 1), gradient)
            (filtered,) = optimizer._filter([layer.weight], optimizer.param_groups[0])
            assert filtered.item() == pytest.approx(gradient + 2.0 * slow, rel=1e-5)

    def test_it_is_off_by_default_and_keeps_nothing(self):
        net = Net()
        optimizer = MuGrokfast(net)
        run(net, optimizer)
        assert all("slow" not in state for state in optimizer.state.values())

    def test_it_changes_both_rules(self):
        plain, filtered = twins()
        run(plain, MuGrokfast(plain))
        run(filtered, MuGrokfast(filtered, grokfast=2.0))
        for name in ("tall.weight", "words.weight", "gain"):
            assert not torch.allclose(plain.state_dict()[name], filtered.state_dict()[name])


def test_a_saved_state_goes_on_exactly(tmp_path):
    whole, broken = twins()
    settings = {"grokfast": 0.5}
    straight = MuGrokfast(whole, **settings)
    run(whole, straight, steps=3)
    first = MuGrokfast(broken, **settings)
    run(broken, first, steps=3)
    tensors, rest = optimizer_tensors(first)
    save_file(tensors, tmp_path / "o.safetensors")
    second = MuGrokfast(broken, **settings)
    restore_optimizer(second, load_file(tmp_path / "o.safetensors"), rest)
    run(whole, straight, steps=3)
    run(broken, second, steps=3)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), broken.parameters(), strict=True))


@pytest.mark.parametrize("phase", list(PRESETS))
def test_every_preset_builds(phase, tiny):
    model = tiny()
    assert MuGrokfast.for_phase(model, phase).param_groups[0]["lr"] == PRESETS[phase]["lr"]


@pytest.mark.parametrize("wrong", [{"adjust_lr": "other"}, {"matrix_rule": "sgd"}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UsageError, match=r"expected one of (original|muon), "):
        MuGrokfast(Net(), **wrong)
    with pytest.raises(UsageError, match="cognate"):
        MuGrokfast.for_phase(Net(), "phase9")


def test_a_closure_is_called():
    net = Net()
    optimizer = MuGrokfast(net)

    def closure():
        loss = net(torch.arange(4))
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(closure().item(), rel=0.5)


class TestQKClip:
    def model(self, groups: int) -> CognateForCausalLM:
        model = CognateForCausalLM(tiny_config(qk_norm=False, num_key_value_heads=groups, memory_layers=[])).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(std=1.0 if "qkv" in name else 0.3)
        return model

    @pytest.mark.parametrize("groups", [4, 2])
    def test_a_clipped_head_ends_at_the_limit_and_the_others_stay(self, groups):
        model, text = self.model(groups), torch.randint(3, 64, (2, 12))
        name = "model.layers.0.attention"
        before = largest_logits(model, text)[name]
        limit = float(before.sort().values[1:3].mean())  # two heads above it, two below
        assert clip_heads(model, {name: before}, limit) == int((before > limit).sum()) == 2
        after = largest_logits(model, text)[name]
        torch.testing.assert_close(after, before.clamp(max=limit), rtol=1e-4, atol=1e-4)

    def test_the_probe_sees_what_attention_computes(self):
        model, text = self.model(4), torch.randint(3, 64, (1, 6))
        attention = model.model.layers[0].attention
        seen = {}
        attention.register_forward_hook(lambda module, args, out: seen.update(x=args[0], reading=args[1]))
        largest = largest_logits(model, text)["model.layers.0.attention"]
        parts = attention.qkv_proj(seen["x"]).split(attention.row_blocks, dim=-1)[:2]
        q, k = (
            rotate(part.view(1, 6, 4, -1).transpose(1, 2), seen["reading"].cos, seen["reading"].sin) for part in parts
        )
        logits = (q @ k.transpose(-1, -2) * attention.scale).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
        torch.testing.assert_close(largest, logits.amax((0, 2, 3)))
        assert attention.probed is None

    def test_heads_whose_logits_are_all_negative_are_left_alone(self):
        model, name = self.model(4), "model.layers.0.attention"
        before = model.get_parameter(f"{name}.qkv_proj.weight").clone()
        assert clip_heads(model, {name: torch.tensor([-5.0, -0.1, 0.0, 99.0])}, 100.0) == 0
        assert torch.equal(model.get_parameter(f"{name}.qkv_proj.weight"), before)

    def test_the_probe_counts_every_pass_of_a_model_with_loops(self):
        single, text = self.model(2), torch.randint(3, 64, (2, 9))
        looped = CognateForCausalLM(tiny_config(qk_norm=False, memory_layers=[], loops=3))
        looped.load_state_dict(single.state_dict())
        name = "model.layers.0.attention"
        assert (largest_logits(looped, text)[name] >= largest_logits(single, text)[name]).all()

    def test_the_probe_reads_the_masks_of_the_gpu_too(self):
        q, k = torch.randn(1, 4, 40, 8), torch.randn(1, 2, 40, 8)
        dense = attention_mask(40, 0, 7, torch.device("cpu"))
        torch.testing.assert_close(
            _largest_logits(q, k, _blocks(40, 7, None, torch.device("cpu")), 1.0), _largest_logits(q, k, dense, 1.0)
        )

    def test_a_model_without_our_attention_cannot_be_clipped(self):
        with pytest.raises(UsageError, match="qk_clip"):
            largest_logits(torch.nn.Linear(2, 2), torch.zeros(1, 2))

    def test_qk_norm_bounds_the_logits_by_itself(self, tiny):
        model = tiny()
        with torch.no_grad():
            for block in model.model.layers:
                block.attention.qkv_proj.weight.mul_(1000)
        bound = model.config.softmax_scale * model.config.head_dim + 1e-3
        assert all(logits.max() <= bound for logits in largest_logits(model, torch.randint(3, 64, (2, 20))).values())


@pytest.mark.parametrize("rank", [1, 4])
def test_an_adapter_learns_at_the_rate_of_matrices_at_any_rank(rank):
    """AdamW's first step is the learning rate in every weight that has a gradient."""
    base = nn.Linear(32, 64, bias=False).requires_grad_(False)
    net = nn.Sequential(LoraLinear(base, torch.ones(rank, 32), torch.zeros(64, rank), 2.0))
    assert [name for name, _ in route(net)["matrix"]] == ["0.lora_A", "0.lora_B"]
    optimizer = MuGrokfast(net, matrix_rule="adamw", lr=0.01, scalar_lr=1e-5, weight_decay=0.0)
    net[0].lora_B.grad = torch.ones_like(net[0].lora_B)
    optimizer.step()
    torch.testing.assert_close(net[0].lora_B.detach(), torch.full((64, rank), -0.01))
