"""Programs that a launcher such as torchrun starts in several processes: one of them speaks."""

import os

from torch import distributed


def leave_group() -> bool:
    """Leave the group of processes, if there is one; True in its first, which is the one to print."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return int(os.environ.get("RANK", "0")) == 0
    is_first: bool = distributed.get_rank() == 0
    distributed.destroy_process_group()
    return is_first
