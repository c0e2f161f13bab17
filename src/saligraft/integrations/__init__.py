"""Saliency Grafting inside other people's training loops; each module needs the extra of its name."""
