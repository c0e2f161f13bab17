"""Puzzle Mix against gco and SaliencyMix's map against OpenCV, with their ratios, in one run.

    python benchmarks/peers.py

Runs `puzzle_cost.py` and `saliency_cost.py` one after the other with their default settings; see there.
"""

import sys

import puzzle_cost
import saliency_cost

if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("peers.py takes no options: puzzle_cost.py and saliency_cost.py do")
    puzzle_cost.main()
    saliency_cost.main()
