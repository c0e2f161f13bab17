"""Bottom-up saliency against plain NumPy, against OpenCV, and its invariances."""

import numpy as np
import pytest
import torch
from torch import Tensor

from saligraft.masks import salient_regions
from saligraft.saliency import FineGrained, SpectralResidual, fine_grained_saliency, spectral_residual_saliency
from saligraft.saliency.bottom_up import RGB_WEIGHTS, SURROUNDS

FUNCTIONS = [fine_grained_saliency, spectral_residual_saliency]
SIZES = [(32, 32), (40, 57), (224, 160)]


def smooth_noise(count: int, size: tuple[int, int], channels: int = 3, seed: int = 0) -> Tensor:
    """Clouds in [0, 1], as 8-bit images would hold them, contrast over the whole range."""
    stream = torch.Generator().manual_seed(seed)
    height, width = size
    coarse = [torch.rand(count, channels, max(height // s, 2), max(width // s, 2), generator=stream) for s in (4, 8)]
    clouds = sum(torch.nn.functional.interpolate(c, size=size, mode="bicubic") for c in coarse)
    low, high = clouds.amin(dim=(1, 2, 3), keepdim=True), clouds.amax(dim=(1, 2, 3), keepdim=True)
    return ((clouds - low) / (high - low) * 255).round() / 255


def grey_of(image: np.ndarray) -> np.ndarray:
    return image[0] if len(image) == 1 else np.tensordot(RGB_WEIGHTS, image[:3], axes=1)


def mirrored(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Correlation with an outer product of `kernel`, border mirrored about the edge pixel."""
    margin = len(kernel) // 2
    padded = np.pad(image, margin, mode="reflect")
    result = np.zeros_like(image)
    for dy, wy in enumerate(kernel):
        for dx, wx in enumerate(kernel):
            result += wy * wx * padded[dy : dy + image.shape[0], dx : dx + image.shape[1]]
    return result


def plain_fine_grained(image: np.ndarray, *, in_bytes: bool = False) -> np.ndarray:
    """The definition by loops over pixels: centre minus the mean of the other pixels of a clipped box, six sizes.

    `in_bytes` rounds grey and blurs to whole levels, and cuts contrasts and results down to them, as OpenCV does.
    """
    nearest = (lambda values: np.floor(values + 0.5)) if in_bytes else (lambda values: values)
    down = np.floor if in_bytes else (lambda values: values)
    grey = nearest(grey_of(image.astype(np.float64)) * 255)
    for _ in range(2):
        grey = nearest(mirrored(grey, np.array([0.25, 0.5, 0.25])))
    height, width = grey.shape
    on, off = np.zeros_like(grey), np.zeros_like(grey)
    for reach in SURROUNDS:
        for y in range(height):
            for x in range(width):
                box = grey[max(y - reach + 1, 0) : y + reach + 1, max(x - reach + 1, 0) : x + reach + 1]
                contrast = grey[y, x] - (box.sum() - grey[y, x]) / (box.size - 1)
                on[y, x] += down(max(contrast, 0))
                off[y, x] += down(max(-contrast, 0))
    return (down(255 * on / on.max()) + down(255 * off / off.max())) / 255


def test_fine_grained_equals_its_definition() -> None:
    images = smooth_noise(2, (30, 26))
    expected = np.stack([plain_fine_grained(image) for image in images.numpy()])
    np.testing.assert_allclose(fine_grained_saliency(images), expected, atol=2e-5)


def test_spectral_residual_equals_its_definition() -> None:
    images = smooth_noise(3, (64, 64))  # at this size nothing is resized
    gauss = np.exp(-np.square(np.arange(-2, 3)) / (2 * 8.0**2))
    for image, got in zip(images.double().numpy(), spectral_residual_saliency(images).numpy(), strict=True):
        spectrum = np.fft.fft2(grey_of(image) * 255)
        logs = np.log(np.abs(spectrum) + 1)
        residual = np.exp(logs - mirrored(logs, np.full(3, 1 / 3)) + 1j * np.angle(spectrum))
        expected = mirrored(np.abs(np.fft.ifft2(residual)), gauss / gauss.sum()) ** 2
        np.testing.assert_allclose(got, expected / expected.max(), atol=1e-4)


def as_opencv(images: Tensor) -> list[np.ndarray]:
    """8-bit BGR, or grey."""
    arrays = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [np.ascontiguousarray(array[..., ::-1] if array.shape[2] == 3 else array[..., 0]) for array in arrays]


def correlations(maps: Tensor, others: list[np.ndarray]) -> list[float]:
    pairs = zip(maps.numpy(), others, strict=True)
    return [float(np.corrcoef(ours.ravel(), theirs.ravel())[0, 1]) for ours, theirs in pairs]


def natural_images(size: tuple[int, int]) -> Tensor:
    pytest.importorskip("torchvision", reason="the data sets belong to the laboratory")
    from saligraft.data import load

    images = load("shapes", split="test", size=max(size), per_class=1).images / 255
    return images[..., : size[0], : size[1]]


def test_what_parts_the_definition_from_opencv_is_its_rounding_to_bytes() -> None:
    cv2 = pytest.importorskip("cv2")
    images = smooth_noise(2, (30, 26), channels=1)
    for image, array in zip(images.numpy(), as_opencv(images), strict=True):
        theirs = cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(array)[1]
        np.testing.assert_allclose(plain_fine_grained(image, in_bytes=True), theirs, atol=1.01 / 255)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["shapes", "noise", "grey noise"])
def test_fine_grained_against_opencv(kind: str, size: tuple[int, int]) -> None:
    """OpenCV cuts the six contrasts of a pixel down to whole grey levels, which costs up to 6 levels of their sum."""
    cv2 = pytest.importorskip("cv2")
    images = natural_images(size) if kind == "shapes" else smooth_noise(10, size, 1 if kind == "grey noise" else 3)
    theirs = [cv2.saliency.StaticSaliencyFineGrained_create().computeSaliency(image)[1] for image in as_opencv(images)]
    ours = fine_grained_saliency(images)
    assert min(correlations(ours, theirs)) > 0.995
    # A sum that exceeds 1 wraps around in OpenCV's 8 bits; here it does not.
    difference = np.abs(ours.numpy() - np.stack(theirs))[ours.numpy() <= 1]
    assert difference.max() < 0.08
    assert difference.mean() < 0.02


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["shapes", "noise"])
def test_spectral_residual_against_opencv(kind: str, size: tuple[int, int]) -> None:
    """On float images OpenCV does not round: the same map. On 8-bit ones its rounding, of grey and again of what it
    resized, adds noise that the logarithm lifts, most where it enlarged a small image."""
    cv2 = pytest.importorskip("cv2")
    detector = cv2.saliency.StaticSaliencySpectralResidual_create()
    images = natural_images(size) if kind == "shapes" else smooth_noise(10, size)
    ours = spectral_residual_saliency(images)
    rounded = as_opencv(images)
    unrounded = [detector.computeSaliency(image.astype(np.float32))[1] for image in rounded]
    difference = np.abs(ours.numpy() - np.stack(unrounded))
    assert difference.max() < 0.02  # single against double precision, where frequencies are all but absent
    assert difference.mean() < 2e-4
    in_bytes = correlations(ours, [detector.computeSaliency(image)[1] for image in rounded])
    assert np.median(in_bytes) > (0.99 if min(size) > 64 else 0.9)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("channels", "size", "dtype"),  # every pair of values
    [
        (channels, size, (torch.float32, torch.bfloat16, torch.float64)[(i + j) % 3])
        for i, channels in enumerate((1, 3, 4))
        for j, size in enumerate([(16, 16), (33, 20), (1, 1), (1, 9), (2, 3)])
    ],
)
def test_any_size_channels_and_dtype(function, channels: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    images = torch.rand(3, channels, *size, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    maps = function(images)
    assert maps.shape == (3, *size)
    assert maps.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not maps.requires_grad
    assert maps.isfinite().all()
    assert (maps >= 0).all()
    torch.testing.assert_close(function(images[1:2])[0], maps[1])  # no image's map depends on another image


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_fourth_channel_is_ignored_and_other_counts_refused(function) -> None:
    images = torch.rand(2, 4, 20, 20)
    assert torch.equal(function(images), function(images[:, :3]))
    with pytest.raises(ValueError, match=r"images must have 1 \(grey\), 3 \(RGB\) or 4 .* got 2"):
        function(images[:, :2])
    with pytest.raises(TypeError, match="images must be floating point"):
        function(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("scale", "shifts"),
    [(4.0, (-2.0,)), (1e-3, (0.0,)), (1.0, (50.0,)), (-1.0, (0.0,)), (2.0, (-3.0, 0.0, 5.0))],
)
def test_offsets_and_one_scale_for_all_channels_leave_the_map(scale: float, shifts: tuple[float, ...]) -> None:
    images = smooth_noise(3, (32, 40))
    changed = images * scale + torch.tensor(shifts)[:, None, None]
    torch.testing.assert_close(fine_grained_saliency(changed), fine_grained_saliency(images), rtol=0, atol=2e-3)


def test_a_scale_per_channel_changes_the_map() -> None:
    images = smooth_noise(3, (32, 40))
    changed = images * torch.tensor([1.0, 0.2, 3.0])[:, None, None]
    assert (fine_grained_saliency(changed) - fine_grained_saliency(images)).abs().max() > 0.1


@pytest.mark.parametrize("level", [0.0, 0.1, 0.7, 1.0, -300.3])
@pytest.mark.parametrize("source", [FineGrained(), SpectralResidual(), SpectralResidual(mean=(0.4,), std=(0.3,))])
def test_a_flat_image_selects_nothing(source, level: float) -> None:
    maps = source(torch.full((2, 3, 31, 24), level))
    assert maps.isfinite().all()
    assert not salient_regions(maps).any()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_image_that_is_flat_but_for_rounding_selects_nothing(function) -> None:
    level = torch.full((2, 3, 64, 64), 0.7)
    raised = torch.rand(level.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    maps = function(torch.where(raised, level.nextafter(torch.ones(())), level))
    assert not salient_regions(maps).any()


@pytest.mark.parametrize("dot", [1.0, 0.0])
def test_a_bright_or_dark_dot_is_a_peak(dot: float) -> None:
    """On- and off-centre contrast have a peak of 1 each, so that an image may have two."""
    images = torch.full((1, 3, 32, 48), 0.4)
    images[..., 9:12, 30:33] = dot
    maps = fine_grained_saliency(images)[0]
    assert maps[10, 31] == maps.max() == 1


@pytest.mark.parametrize("source", [FineGrained, SpectralResidual])
def test_normalisation_is_undone_where_it_is_known(source) -> None:
    images = smooth_noise(2, (32, 32))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    normalised = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    function = fine_grained_saliency if source is FineGrained else spectral_residual_saliency
    torch.testing.assert_close(source(mean=mean, std=std)(normalised), function(images), rtol=0, atol=1e-3)


def test_spectral_residual_stretches_images_of_unknown_range() -> None:
    images = smooth_noise(2, (32, 32))  # fills [0, 1]
    expected = spectral_residual_saliency(images)
    torch.testing.assert_close(SpectralResidual()(images * 7 - 3), expected, rtol=0, atol=1e-3)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="mean and std must be given together"):
        FineGrained(mean=(0.5,))
    with pytest.raises(ValueError, match="each of std must be a finite number > 0, got 0"):
        FineGrained(mean=(0.5,), std=(0.0,))
    with pytest.raises(TypeError, match=r"mean must be a sequence of numbers, got 0\.5"):
        FineGrained(mean=0.5, std=0.25)
    with pytest.raises(ValueError, match=r"each of mean must be between .*, got nan"):
        FineGrained(mean=(float("nan"),), std=(1.0,))
    with pytest.raises(ValueError, match="mean must have 1 or 3 entries, one per channel, got 2"):
        FineGrained(mean=(0.5, 0.5), std=(1.0, 1.0))(torch.rand(1, 3, 8, 8))
