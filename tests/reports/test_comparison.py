"""Labels of compared pairs."""

from dataclasses import replace

import pytest
from tests.reports.comparisons import pair


@pytest.mark.parametrize(
    ("place", "words"),
    [(0, ("star <b> 12 %", "ring 88 %")), (1, ("star <b> 62 %", "ring 38 %")), (2, ("star <b> 100 %", "ring 0 %"))],
)
def test_words_give_both_classes_their_share(place: int, words: tuple[str, ...]) -> None:
    compared = pair()
    assert compared.in_words(compared.methods[0].samples[place]) == list(
        zip(("source", "destination"), words, strict=True)
    )


def test_one_image_alone_and_one_class_twice_count_whole() -> None:
    compared = pair()
    assert compared.in_words(compared.methods[1].samples[0]) == [("source", "star <b> 100 %")]
    same = replace(compared, destination_class=compared.source_class)
    assert same.shares(same.methods[0].samples[0]) == [("source", "star <b>", 1.0)]


def test_the_pair_shows_the_maps_of_the_first_method_that_has_any() -> None:
    compared = pair()
    assert compared.maps == compared.methods[0].maps
    assert replace(compared, methods=compared.methods[1:]).maps == ()
