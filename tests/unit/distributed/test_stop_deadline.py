"""How long a rank may compute after a stop signal, under launchers that kill it."""

from __future__ import annotations

import pytest

from toolkit.distributed.stop import stop_deadline


@pytest.mark.parametrize(("patience", "seconds"), [(None, 10), ("30", 10), ("700", 680), ("12", 4), ("soon", 10)])
def test_a_step_has_the_time_that_the_launcher_gives(patience, seconds):
    assert stop_deadline({} if patience is None else {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": patience}) == seconds
