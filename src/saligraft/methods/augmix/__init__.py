"""AugMix: the method, and its image operations on batches."""

from saligraft.methods.augmix.method import AugMix, augmix, jensen_shannon_loss

__all__ = ["AugMix", "augmix", "jensen_shannon_loss"]
