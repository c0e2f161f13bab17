"""The parts of a run follow from its recipe."""

import torch

from saligraft.training import Recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.setup import labelled_images, load_split, make_loader, make_network


def test_initial_weights_follow_from_the_seed_alone(tiny_recipe: Recipe) -> None:
    data = load_split(tiny_recipe, "train")
    torch.manual_seed(1)
    first = make_network(tiny_recipe, data).state_dict()
    torch.manual_seed(2)
    expected_draw = torch.rand(1)
    torch.manual_seed(2)
    second = make_network(tiny_recipe, data).state_dict()
    assert torch.equal(torch.rand(1), expected_draw)  # the caller's stream was left alone
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = make_network(tiny_recipe.model_copy(update={"seed": 4}), data).state_dict()
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_channels_last_reaches_weights_and_images(tiny_recipe: Recipe) -> None:
    training = tiny_recipe.training.model_copy(update={"channels_last": True})
    recipe = tiny_recipe.model_copy(update={"training": training})
    data = load_split(recipe, "test")
    assert make_network(recipe, data).stem.weight.is_contiguous(memory_format=torch.channels_last)
    loader = make_loader(recipe, data, make_accelerator(recipe), train=False)
    images, labels = next(iter(labelled_images(recipe, loader)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert len(images) == len(labels) == 16


def test_splits_differ_and_options_reach_the_data(tiny_recipe: Recipe) -> None:
    train, test = load_split(tiny_recipe, "train"), load_split(tiny_recipe, "test")
    assert train.images.shape == (40, 3, 16, 16)
    assert not torch.equal(train.images[:10], test.images[:10])
