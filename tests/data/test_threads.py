"""One thread inside, then as many as before."""

import pytest
import torch

from saligraft.data.threads import one_thread


def test_the_number_of_threads_is_put_back_also_after_an_error() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="within"), one_thread():
        raise ValueError("within")
    assert torch.get_num_threads() == before
