"""The class names of CIFAR."""

from saligraft.data.cifar_classes import CIFAR10_CLASSES, CIFAR100_COARSE_CLASSES, CIFAR100_FINE_CLASSES


def test_names_are_as_many_as_the_set_says_and_sorted_as_published() -> None:
    for names, count in ((CIFAR10_CLASSES, 10), (CIFAR100_FINE_CLASSES, 100), (CIFAR100_COARSE_CLASSES, 20)):
        assert len(names) == count
        assert list(names) == sorted(set(names))
