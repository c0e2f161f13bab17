"""Your own data, network, method, loss, saliency and optimiser: by import path, or passed to `train`."""

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torch import nn

from saligraft import cli
from saligraft.data import load
from saligraft.training import SilentReporter, evaluate_corruptions, load_run, make_recipe, train

CODE = '''
from dataclasses import dataclass

import torch
from torch import nn

import saligraft as sg
from saligraft.data import load
from saligraft.methods.base import BatchMixer


class Shapes(torch.utils.data.Dataset):
    def __init__(self, split, per_class=2):
        self.data = load("shapes", split=split, size=16, per_class=per_class)
        self.classes = self.data.classes

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data.images[index], int(self.data.labels[index])


class Net(nn.Sequential):
    def __init__(self, num_classes, width=4):
        super().__init__(
            nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, num_classes),
        )


def transformer(num_classes):
    return nn.Linear(3, num_classes)


@dataclass(frozen=True, kw_only=True)
class Blend(sg.Mixup):
    """Mixup that only blends a little."""

    alpha: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Graft(sg.SaliencyGrafting):
    """Saliency Grafting, renamed."""


class Squared(nn.Module):
    calls = 0

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, logits, targets):
        Squared.calls += 1
        return self.factor * (logits.softmax(1) - targets).square().sum(1).mean()


def brightness(images, power=1.0):
    return images.abs().mean(dim=1) ** power
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    name = f"own_code_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return name


def table(own: str, **sections: Any) -> dict[str, Any]:
    return {
        "data": {"name": f"{own}:Shapes", "options": {"per_class": 3}},
        "network": {"name": f"{own}:Net", "options": {"width": 5}},
        "training": {"epochs": 1, "batch_size": 10},
        **sections,
    }


def test_everything_by_import_path_on_the_command_line(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f'data = {{ name = "{own}:Shapes", options = {{ per_class = 3 }} }}',
        f'network = {{ name = "{own}:Net", options = {{ width = 5 }} }}',
        f'method = {{ name = "{own}:Graft", options = {{ alpha = 1.5 }}, saliency = {{ name = "{own}:brightness", '
        "options = { power = 2.0 } } }",
        'optimizer = { name = "RAdam", lr = 0.01 }',
        f'training = {{ epochs = 1, batch_size = 10, loss = "{own}:Squared", loss_options = {{ factor = 2.0 }} }}',
    ]
    Path("mine.toml").write_text("\n".join(lines))
    assert cli.run(["train", "mine.toml", "--out", "run"]) == 0
    result = json.loads(Path("run/result.json").read_text())
    assert (result["data"], result["network"], result["method"]) == (f"{own}:Shapes", f"{own}:Net", f"{own}:Graft")
    assert importlib.import_module(own).Squared.calls == 6  # originals and grafts of three steps
    assert cli.run(["train", "run/recipe.toml", "--out", "again"]) == 0  # the run's own recipe names the same code
    assert Path("run/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()
    capsys.readouterr()
    assert cli.run(["evaluate", "run"]) == 0
    assert f"{result['top1_error']['final']:.2f} %" in capsys.readouterr().out
    assert load_run("run").classes[0] == "disc"
    assert Path("run/report.html").is_file()


def test_own_methods_compose_and_are_chosen_from(own: str) -> None:
    path = f"{own}:Blend"
    composed = make_recipe(table(own, method={"name": ["cutout", path], "options": {path: {"alpha": 0.3}}}))
    assert composed.method.build()[1].alpha == 0.3
    chosen = make_recipe(table(own, method={"name": "random-choice", "choices": {path: 0.5, "cutmix": 0.5}}))
    assert train(chosen, reporter=SilentReporter()).summary["epochs"] == 1


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"network": {"name": "nowhere:Net"}}, "network 'nowhere:Net' cannot be imported: there is no module"),
        ({"network": {"name": "OWN:Net", "options": {"deep": 1}}}, "has no option 'deep'; valid: num_classes, width"),
        ({"network": {"name": "OWN:brightness"}}, "has no option 'num_classes'; valid: images, power"),
        ({"network": {"name": "OWN:Net", "options": {"width": "x"}}}, "cannot be built: TypeError: "),
        ({"network": {"name": "OWN:transformer"}}, r"cannot take images (2, 3, 16, 16): "),
        ({"data": {"name": "OWN:Shape"}}, "has no 'Shape'; did you mean 'Shapes'?"),
        ({"data": {"name": "OWN:Shapes", "options": {"size": 1}}}, "has no option 'size'; valid: split, per_class"),
        ({"method": {"name": "OWN:Net"}}, "must be a class derived from one of BatchMixer, ImageTransform, "),
        ({"method": {"name": "OWN:Blend", "options": {"beta": 1}}}, "has no option 'beta'; valid: "),
        ({"method": {"name": "mixup", "saliency": {"name": "OWN:brightness"}}}, "saliency must be left out for"),
        ({"training": {"loss": "OWN:Squared", "loss_options": {"x": 1}}}, "has no option 'x'; valid: factor"),
        ({"training": {"loss": "focal"}}, "loss must be one of cross-entropy, softmax-bce or package.module:Name"),
        ({"training": {"loss_options": {"x": 1}}}, "loss_options must be left out for loss 'cross-entropy'"),
        ({"training": {"loss": "OWN:Squared", "label_smoothing": 0.1}}, "label_smoothing must be 0 for loss "),
        (
            {"method": {"name": "saliency-grafting"}, "training": {"passes": "remembered", "batch_size": 10}},
            "training.passes must not be 'remembered' for ",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(sections: dict[str, Any], words: str, own: str) -> None:
    changed = json.loads(json.dumps(sections).replace("OWN", own))
    with pytest.raises(ValueError, match=r"must|cannot|has no") as raised:
        train(make_recipe(table(own, **changed)), reporter=SilentReporter())
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_name_of_a_recipe_is_refused_with_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"recipe must be a Recipe, as load_recipe\(NAME\) returns, got str"):
        train("shapes-wrn-10-2")  # type: ignore[arg-type]


class Pairs(torch.utils.data.Dataset[Any]):
    """Shapes as a data set of Python."""

    def __init__(self, split: str, count: int = 20) -> None:
        self.data, self.count = load("shapes", split=split, size=16, per_class=2), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data.images[index].float() / 255 + 0.1 * torch.rand(()), int(self.data.labels[index])


def network(seed: int = 0, classes: int = 10) -> nn.Module:
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(4, classes))


class Entry(NamedTuple):
    logits: torch.Tensor


class Rows(nn.Module):
    """Logits that are not a tensor."""

    def forward(self, images: torch.Tensor) -> Entry:
        return Entry(images.flatten(1)[:, :10])


class Killed(SilentReporter):
    """Fails at a step, as a crash would."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            raise RuntimeError("killed")


@pytest.mark.parametrize("optimizer", ["sgd", "RAdam", "timm:lamb", "timm:adan"])
def test_a_given_network_and_data_are_trained_and_resumed(optimizer: str, tmp_path: Path) -> None:
    recipe = make_recipe(
        {
            "title": "Shapes, WRN-10-2",
            "method": {"name": "saliency-grafting"},
            "training": {"epochs": 3, "batch_size": 10},
            "optimizer": {"name": optimizer, "lr": 0.01},
        }
    )
    data = Pairs("train"), Pairs("test")
    model = network()
    before = [value.clone() for value in model.parameters()]
    result = train(recipe, tmp_path / "run", model=model, data=data, reporter=SilentReporter())
    assert result.network is model
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert (result.recipe.network.name, result.recipe.data.name) == ("given:Sequential", "given:Pairs")
    assert result.recipe.title == ""

    with pytest.raises(RuntimeError, match="killed"):
        train(recipe, tmp_path / "killed", model=network(), data=data, reporter=Killed(4))
    train(recipe, tmp_path / "killed", model=network(7), data=data, reporter=SilentReporter(), resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "killed")


def assert_same_run(one: Path, other: Path) -> None:
    for file in ("model.safetensors", "metrics.jsonl", "recipe.toml"):
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


def tied_network(seed: int = 0) -> nn.Module:
    """A batch norm under two names, and a weight under three."""
    torch.manual_seed(seed)
    norm, linear = nn.BatchNorm2d(4), [nn.Linear(4, 4) for _ in range(3)]
    linear[1].weight = linear[2].weight = linear[0].weight
    trunk = nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 3), norm
    return nn.Sequential(*trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *linear, nn.Linear(4, 10))


def test_a_network_with_shared_layers_is_trained_and_resumed(tmp_path: Path) -> None:
    recipe = make_recipe({"training": {"epochs": 3, "batch_size": 10, "ema_decay": 0.5}})
    data = Pairs("train"), Pairs("test")
    train(recipe, tmp_path / "run", model=tied_network(), data=data, reporter=SilentReporter())
    with pytest.raises(RuntimeError, match="killed"):
        train(recipe, tmp_path / "killed", model=tied_network(), data=data, reporter=Killed(4))
    train(recipe, tmp_path / "killed", model=tied_network(7), data=data, reporter=SilentReporter(), resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "killed")


def test_the_command_line_says_that_it_lacks_what_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_recipe({"training": {"epochs": 1, "batch_size": 10}, "network": {"name": "wrn-10-1"}})
    data = load("shapes", size=16, per_class=2), Pairs("test")
    train(recipe, tmp_path / "data", data=data, reporter=SilentReporter())
    train(recipe, tmp_path / "model", data=data, model=network(), reporter=SilentReporter())
    for arguments, words in (
        (["train", "data", "--resume"], "data.name 'given:ImageData' stands for data that were passed to train(data="),
        (["evaluate", "data"], "data.name 'given:ImageData' stands for data that were passed to train(data="),
        (["export", "model"], "network.name 'given:Sequential' stands for a network that was passed to train(model="),
    ):
        arguments[1] = str(tmp_path / arguments[1])
        assert cli.run(arguments) == 2
        message = capsys.readouterr().err
        assert words in message
        assert message.count("\n") == 1
    run = load_run(tmp_path / "model", model=network(3))
    [weights] = [value for name, value in run.network.named_parameters() if name == "0.weight"]
    assert not torch.equal(weights, dict(network(3).named_parameters())["0.weight"])
    assert load_run(tmp_path / "data").classes[0] == "disc"  # only the data were given


class Listed(torch.utils.data.Dataset[Any]):
    """Images of any kind, from a list."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images, self.targets, self.classes = images, [0, 1] * (len(images) // 2), ["a", "b"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], self.targets[index]


def trained_on(images: torch.Tensor, folder: Path, **attributes: Any) -> Any:
    data = Listed(images)
    vars(data).update(attributes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 2))
    recipe = make_recipe({"training": {"epochs": 1, "batch_size": 4}})
    train(recipe, folder, model=model, data=(data, data), reporter=SilentReporter())
    return load_run(folder, model=model)


def test_predictions_normalise_as_the_data_set_did(tmp_path: Path) -> None:
    pixels = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    normalised = (pixels / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    known = trained_on(normalised, tmp_path / "known", mean=mean, std=std)
    torch.testing.assert_close(known.transform(pixels[0]), normalised[0])
    unknown = trained_on(normalised, tmp_path / "unknown")
    assert torch.equal(unknown.transform(normalised[0]), normalised[0])
    expected = unknown.network(normalised).softmax(dim=1).amax(dim=1).tolist()
    assert [best[0][1] for best in unknown.predict(normalised, top=1)] == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"no attributes `mean` and `std`, so an image must be .*, got torch.uint8"):
        unknown.predict(pixels)
    with pytest.raises(ValueError, match=r"corruptions need images in .* has no attributes `mean` and `std`"):
        evaluate_corruptions(unknown)
    scaled = trained_on(pixels / 255, tmp_path / "scaled")  # by ToTensor alone
    torch.testing.assert_close(scaled.transform(pixels[0]), pixels[0] / 255)


def test_a_network_of_grey_images_predicts(tmp_path: Path) -> None:
    pixels = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    run = trained_on(pixels, tmp_path)
    view = (pixels[0] / 255 - 0.5) / 0.25
    image = Image.fromarray(pixels[0, 0].numpy())
    for form in (pixels[0], pixels[0] / 255, image, image.convert("RGB")):
        torch.testing.assert_close(run.transform(form), view)


def test_the_weights_of_a_compiled_network_are_those_of_the_network(tmp_path: Path) -> None:
    recipe = make_recipe({"training": {"epochs": 1, "batch_size": 10}})
    data, plain = (Pairs("train"), Pairs("test")), network()
    train(recipe, tmp_path, model=torch.compile(plain, backend="eager"), data=data, reporter=SilentReporter())
    run = load_run(tmp_path, model=network(3))
    for name, value in plain.state_dict().items():
        assert torch.equal(run.network.state_dict()[name], value), name


def test_what_does_not_fit_is_refused() -> None:
    recipe = make_recipe({"training": {"epochs": 1, "batch_size": 10}})
    data = Pairs("train"), Pairs("test")
    for arguments, words in (
        ({"model": "resnet"}, "model must be a torch.nn.Module, got str"),
        ({"data": data[0]}, "data must be a pair of data sets, to train and to test on, got Pairs"),
        ({"data": data, "model": Rows()}, "got Entry; recipes need a network whose forward returns the logits alone"),
        ({"data": data, "model": network(classes=4)}, r"must give logits \(2, 10\) for 2 images, got shape \(2, 4\)"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            train(recipe, **arguments, reporter=SilentReporter())
