"""Optimisers, their parameter groups, and the moving average of the weights."""

from typing import Any

import pytest
import torch
from torch import nn

from saligraft.config.sections import OptimizerSection
from saligraft.networks import build_network
from saligraft.training import make_recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.optimizer import AveragedWeights, head_parameters, parameter_groups


def build_optimizer(network: nn.Module, section: OptimizerSection) -> torch.optim.Optimizer:
    return section.build(parameter_groups(network, section))


def test_sgd_takes_the_recipe_s_numbers() -> None:
    section = OptimizerSection(lr=0.3, momentum=0.8, nesterov=True, weight_decay=0.01)
    (group,) = build_optimizer(nn.Linear(2, 2), section).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"], group["weight_decay"]) == (0.3, 0.8, True, 0.01)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_takes_the_recipe_s_numbers(name: str, kind: type[torch.optim.Optimizer]) -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), OptimizerSection(name=name, lr=0.001, betas=(0.8, 0.9)))
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("AdamW", {"betas": [0.8, 0.9], "eps": 1e-6}, "AdamW"),
        ("RMSprop", {"momentum": 0.9}, "RMSprop"),
        ("timm:lamb", {"betas": [0.8, 0.9]}, "Lamb"),
        ("torch.optim:NAdam", {}, "NAdam"),
        ("sgd", {"dampening": 0.1}, "SGD"),
    ],
)
def test_any_optimizer_of_torch_and_timm(name: str, options: dict[str, Any], kind: str) -> None:
    optimizer = build_optimizer(
        nn.Linear(2, 2), OptimizerSection(name=name, lr=0.3, weight_decay=0.02, options=options)
    )
    assert type(optimizer).__name__ == kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["initial_lr"], group["weight_decay"]) == (0.3, 0.3, 0.02)
    for option, value in options.items():
        assert group[option] == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"name": "radam"}, "unknown optimizer 'radam'; valid: ASGD, "),
        ({"name": "Radam"}, "did you mean 'RAdam'?"),
        ({"name": "RAdam", "options": {"epz": 1}}, "optimizer RAdam cannot be built: "),
        ({"name": "RAdam", "momentum": 0.5}, "momentum is for sgd, adam, adamw: set options.momentum of RAdam"),
        ({"name": "Rprop"}, "weight_decay must be 0 for optimizer Rprop, which has none, got 0.0005"),
        ({"name": "LBFGS", "weight_decay": 0.0}, "LBFGS cannot be used: it evaluates the loss several times per step"),
        ({"name": "timm:nothing"}, "optimizer timm:nothing cannot be built: "),
        ({"name": "torch.nn:Linear"}, "optimizer torch.nn:Linear cannot be built: "),
    ],
)
def test_an_optimizer_that_does_not_fit_is_one_line(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="optimizer") as raised:
        make_recipe({"optimizer": section})
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_norm_parameters_and_biases_can_go_without_decay() -> None:
    network = build_network("wrn-10-1", 10)
    section = OptimizerSection(weight_decay=0.1, decay_norm_and_bias=False)
    decayed, plain = parameter_groups(network, section)
    expected = set()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            expected.add(id(module.weight))
    assert {id(p) for p in decayed["params"]} == expected
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(plain["params"]) == len(list(network.parameters()))


def test_frozen_parameters_stay_out() -> None:
    network = nn.Linear(2, 2)
    network.weight.requires_grad_(False)
    assert parameter_groups(network, OptimizerSection())[0]["params"] == [network.bias]
    assert len(parameter_groups(network, OptimizerSection(decay_norm_and_bias=False))) == 1


HEADS = [
    ("wrn-10-1", ["head.weight", "head.bias"]),
    ("pyramidnet-20-24", ["head.weight", "head.bias"]),
    ("resnet-10", ["fc.weight", "fc.bias"]),
    ("torchvision:vgg11", ["classifier.6.weight", "classifier.6.bias"]),
    ("torchvision:squeezenet1_1", ["classifier.1.weight", "classifier.1.bias"]),
    ("torchvision:swin_t", ["head.weight", "head.bias"]),
    ("torchvision:googlenet", ["fc.weight", "fc.bias"]),
    ("timm:resnet18", ["fc.weight", "fc.bias"]),
    ("timm:convnext_atto", ["head.fc.weight", "head.fc.bias"]),
    ("timm:deit_tiny_distilled_patch16_224", ["head.weight", "head.bias", "head_dist.weight", "head_dist.bias"]),
]


@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize(("name", "expected"), HEADS, ids=[name for name, _ in HEADS])
def test_the_head_is_what_gives_the_logits(name: str, expected: list[str]) -> None:
    with torch.device("meta"):
        network = build_network(name, 7)
    head = {id(parameter) for parameter in head_parameters(network)}
    assert [name for name, parameter in network.named_parameters() if id(parameter) in head] == expected


def test_a_network_without_a_linear_layer_has_no_head() -> None:
    with pytest.raises(ValueError, match=r"head_lr must be left out for Conv2d, which has no fully-connected"):
        parameter_groups(nn.Conv2d(3, 3, 3), OptimizerSection(head_lr=0.1))


@pytest.mark.parametrize("decay_all", [True, False])
def test_the_head_has_its_own_learning_rate(decay_all: bool) -> None:
    network = build_network("wrn-10-1", 10)
    section = OptimizerSection(name="adam", lr=0.001, head_lr=0.01, weight_decay=0.1, decay_norm_and_bias=decay_all)
    optimizer = build_optimizer(network, section)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    seen = {names[id(p)]: group for group in optimizer.param_groups for p in group["params"]}
    assert seen.keys() == set(names.values())
    for name, group in seen.items():
        assert group["lr"] == group["initial_lr"] == (0.01 if name.startswith("head.") else 0.001)
        assert group["weight_decay"] == (0.1 if decay_all or network.get_parameter(name).ndim > 1 else 0.0)


def walk(network: nn.Module, steps: int, average: AveragedWeights | None = None, seed: int = 1) -> list[torch.Tensor]:
    """Take steps as training would; returns the first weight after each."""
    torch.manual_seed(seed)
    seen = []
    for _ in range(steps):
        network(torch.randn(4, 3, 5, 5))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        if average is not None:
            average.update()
        seen.append(next(network.parameters()).detach().clone())
    return seen


def batch_norm_network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    network(torch.randn(2, 3, 5, 5))
    return network


def test_the_mean_follows_the_formula_and_buffers_are_copied() -> None:
    network = batch_norm_network()
    average = AveragedWeights(network, 0.9)
    first, *rest = walk(network, 5, average)
    expected = first.double()
    for weight in rest:
        expected = 0.9 * expected + 0.1 * weight.double()
    mean = next(average.network.parameters())
    torch.testing.assert_close(mean.double(), expected, rtol=1e-6, atol=1e-7)
    assert not mean.requires_grad
    assert next(network.parameters()).requires_grad
    for own, copied in zip(network.buffers(), average.network.buffers(), strict=True):
        assert torch.equal(own, copied)
        assert own is not copied


def test_its_state_goes_on_where_it_stood() -> None:
    network = batch_norm_network()
    average = AveragedWeights(network, 0.9)
    walk(network, 3, average)
    state = {name: tensor.clone() for name, tensor in average.state_dict().items()}
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    walk(network, 2, average, seed=2)

    again = batch_norm_network()
    again.load_state_dict(weights)
    resumed = AveragedWeights(again, 0.9)
    resumed.load_state_dict(state)
    walk(again, 2, resumed, seed=2)
    for name, tensor in average.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_mean_of_a_prepared_network_runs_on_its_own_weights(precision: str) -> None:
    recipe = make_recipe({"training": {"precision": precision}})
    accelerator = make_accelerator(recipe)
    network = accelerator.unwrap_model(accelerator.prepare(batch_norm_network()))
    average = AveragedWeights(network, 0.5)
    average.update()
    images = torch.randn(2, 3, 5, 5)
    average.network.eval()
    before = average.network(images)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(average.network(images), before)
    assert before.abs().sum() > 0


def test_a_decay_of_one_would_stand_still() -> None:
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\), got 1.0"):
        AveragedWeights(nn.Linear(1, 1), 1.0)
