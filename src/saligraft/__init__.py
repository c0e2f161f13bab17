"""Saliency Grafting for PyTorch (Park et al., AAAI 2022)."""

__version__ = "0.1.0"
