"""The page's masks and weights equal the library's, computed in float64 from the same maps, to 1e-6."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.browser.conftest import HEIGHT, WIDTH

import saligraft as sg
from saligraft.masks.rectangle import rectangle_mask
from saligraft.masks.salient import NORMALIZATIONS
from saligraft.methods.saliencymix import peak_box
from saligraft.reports.visibility import visible_shares

TEMPERATURES = (0.01, 0.05, 0.2, 0.7, 10.0)
THRESHOLDS = (0.0, 0.5, 1.0, 1.35, 3.0)
PROBABILITIES = (0.0, 0.3, 0.77, 1.0)
GRIDS = (1, 2, 4, 5, 7, 8, 13, 16)


def all_settings(count: int) -> list[dict[str, Any]]:
    """Every pair of images and every normalisation; the other settings take turns, so that all of them meet."""
    turns = itertools.cycle(itertools.product(TEMPERATURES, THRESHOLDS, GRIDS, PROBABILITIES))
    names = ("temperature", "threshold", "grid", "probability")
    pairs = itertools.permutations(range(count), 2)
    out = []
    for seed, ((source, destination), normalize) in enumerate(itertools.product(pairs, NORMALIZATIONS)):
        for _ in range(7):  # the cycle has 800 settings, 1470 are drawn
            values = dict(zip(names, next(turns), strict=True))
            out.append({**values, "source": source, "destination": destination, "normalize": normalize, "seed": seed})
    return out


def as_mask(values: list[float], grid: int) -> torch.Tensor:
    return torch.tensor(values).view(1, grid, grid) > 0.5


@pytest.fixture(scope="module")
def shown(opened: Any, page: Path, maps: torch.Tensor) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the page computes for every setting; drawing a thousand pages would take minutes, so only some are drawn."""
    browser = opened(page)
    settings = all_settings(len(maps))
    script = """
        const data = JSON.parse(document.getElementById("x-data").textContent);
        const maps = data.images.map((image) => mapOf(image.saliency));
        return arguments[0].map((one) => graftPair(maps[one.source], maps[one.destination], one, data));
    """
    return list(zip(settings, browser.execute_script(script, settings), strict=True))


def test_masks_and_weights_equal_the_librarys(shown: list, maps: torch.Tensor) -> None:
    images, labels, partner = torch.zeros(2, 1, HEIGHT, WIDTH), torch.tensor([0, 1]), torch.tensor([1, 0])
    kinds = set()
    for setting, result in shown:
        grid = setting["grid"]
        pair = sg.resize_saliency(maps[[setting["source"], setting["destination"]]].double(), grid)
        options = {name: setting[name] for name in ("temperature", "threshold", "normalize")}
        salient = sg.salient_regions(pair[:1], **options)
        assert torch.equal(as_mask(result["salient"]["values"], grid), salient), setting
        chosen = torch.tensor(result["draws"], dtype=torch.float64).view(1, grid, grid) < setting["probability"]
        both = torch.cat((chosen, chosen))
        mixed = sg.graft_salient_regions(images, labels, pair, partner=partner, chosen=both, **options)
        by_area = sg.graft_salient_regions(
            images, labels, pair, partner=partner, chosen=both, label_mixing="area", **options
        )
        assert torch.equal(as_mask(result["mask"]["values"], grid), mixed.mask[:1]), setting
        weight = sg.calibrated_weight(pair[:1], pair[1:], mixed.mask[:1], image_size=(HEIGHT, WIDTH))
        assert result["calibrated"] == pytest.approx(float(weight), abs=1e-6), setting
        assert result["calibrated"] == pytest.approx(float(mixed.source_weight[0]), abs=1e-6), setting
        assert result["area"] == pytest.approx(float(by_area.source_weight[0]), abs=1e-6), setting
        kinds.add((0 < int(mixed.mask[0].sum()) < grid * grid, abs(result["area"] - result["calibrated"]) > 0.05))
    assert kinds >= {(True, True), (True, False), (False, False)}  # the settings cover different outcomes


def test_resized_maps_and_softmax_equal_the_librarys(shown: list, maps: torch.Tensor) -> None:
    finite = [(one, result) for one, result in shown if bool(maps[one["source"]].isfinite().all())]
    for setting, result in finite:
        expected = sg.resize_saliency(maps[setting["source"]][None].double(), setting["grid"]).flatten()
        assert torch.allclose(torch.tensor(result["source"]["values"], dtype=torch.float64), expected, atol=1e-6)
        assert sum(result["shares"]["values"]) == pytest.approx(1)
        if setting["normalize"] == "l2" and expected.max() > expected.min() * (1 + 1e-5):
            softmax = (expected / expected.norm() / setting["temperature"]).softmax(0)
            assert result["shares"]["values"] == pytest.approx(softmax.tolist(), abs=1e-6)


def test_float32_as_in_training_gives_the_same_masks_at_the_defaults(opened: Any, page: Path, maps: Any) -> None:
    browser = opened(page)
    for source in range(len(maps)):
        result = browser.execute_script("return explorer.show({ source: arguments[0], grid: 8 })", source)
        salient = sg.salient_regions(sg.resize_saliency(maps[source][None], 8))
        assert torch.equal(as_mask(result["salient"]["values"], 8), salient), source


def test_uniforms_are_uniform_repeat_by_seed_and_let_the_mask_grow(opened: Any, page: Path) -> None:
    browser = opened(page)
    draws = torch.tensor(browser.execute_script("return uniforms(5, 20000)"), dtype=torch.float64)
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = torch.histc(draws, bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # χ² of 19 degrees of freedom, 0.1 %
    assert browser.execute_script("return uniforms(5, 20000)") == draws.tolist()
    assert browser.execute_script("return uniforms(6, 3)") != draws[:3].tolist()
    before = set()
    for probability in (0, 0.2, 0.5, 0.9, 1):
        result = browser.execute_script("return explorer.show({ probability: arguments[0] })", probability)
        mask = {i for i, value in enumerate(result["mask"]["values"]) if value}
        assert before <= mask
        before = mask
    assert mask == {i for i, value in enumerate(result["salient"]["values"]) if value}


def test_other_methods_and_visible_objects_equal_the_librarys(
    opened: Any, page: Path, maps: torch.Tensor, objects: torch.Tensor
) -> None:
    browser = opened(page)
    images, labels, partner = torch.zeros(2, 1, HEIGHT, WIDTH), torch.tensor([0, 1]), torch.tensor([1, 0])
    script = """
        const out = explorer.show(arguments[0]);
        return [explorer.methods(), out.visible, uniforms(out.settings.seed * 1009 + 7, 2)];
    """
    for probability, seed in ((0.0, 1), (0.25, 2), (0.6, 3), (1.0, 4)):
        methods, visible, (y, x) = browser.execute_script(
            script, {"source": 1, "destination": 2, "probability": probability, "seed": seed}
        )
        by_title = {method["title"]: method for method in methods}
        ratio, pixel = torch.tensor([probability], dtype=torch.float64), torch.zeros(1, HEIGHT, WIDTH)
        pixel[0, int(y * HEIGHT), int(x * WIDTH)] = 1
        cutmix = rectangle_mask(peak_box(pixel, ratio, HEIGHT, WIDTH), HEIGHT, WIDTH)
        box = torch.tensor(by_title["CutMix"]["mask"]["values"]).view(1, HEIGHT, WIDTH) > 0.5
        assert torch.equal(box, cutmix)
        assert by_title["CutMix"]["weight"] == pytest.approx(float(cutmix.double().mean()))
        attentive = sg.attentive_cutmix(images, labels, sg.resize_saliency(maps[1:3].double(), 7), partner=partner, k=6)
        assert torch.equal(as_mask(by_title["Attentive CutMix"]["mask"]["values"], 7), attentive.mask[:1])
        assert by_title["Attentive CutMix"]["weight"] == pytest.approx(float(attentive.source_weight[0]), abs=1e-6)
        assert by_title["Mixup"]["weight"] == probability
        mask = torch.tensor(by_title["Saliency Grafting"]["mask"]["values"]).view(1, 8, 8).expand(2, 8, 8) > 0.5
        mixed = sg.MixedBatch(images, labels, labels[partner], torch.ones(2), mask, partner)
        true = visible_shares(objects[1:3], mixed)
        assert visible["shown"] == pytest.approx(float(true.source[0]), abs=1e-6)
        assert visible["kept"] == pytest.approx(float(true.destination[0]), abs=1e-6)


def test_visible_objects_follow_moved_blocks(opened: Any, page: Path) -> None:
    stream = torch.Generator().manual_seed(0)
    objects = torch.rand(2, 8, 12, generator=stream) < 0.4
    levels = torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.0, 0.5]])
    blocks = torch.tensor([[3, 3, 5, 3, 0, 1], [5, 4, 3, 2, 1, 0]])  # of the source, block 3 is shown twice clearly
    arguments = [*objects.flatten(1).long().tolist(), levels.flatten().tolist(), blocks.tolist()]
    visible = opened(page).execute_script(
        "const [a, b, values, blocks] = arguments;"
        "return visibleObjects(a, b, { rows: 2, columns: 3, values }, 8, 12, blocks)",
        *arguments,
    )
    for image, share, name in ((0, levels.flatten(), "shown"), (1, 1 - levels.flatten(), "kept")):
        clearest = {
            block: max(float(share[cell]) for cell in range(6) if blocks[image, cell] == block)
            for block in set(blocks[image].tolist())
        }
        seen = sum(
            float(objects[image, y, x]) * clearest.get(y // 4 * 3 + x // 4, 0.0) for y in range(8) for x in range(12)
        )
        assert visible[name] == pytest.approx(seen / float(objects[image].sum()), abs=1e-6)
