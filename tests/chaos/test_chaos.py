"""Small in CI; DIST_CHECKS_CHAOS=200 kills two hundred processes and damages a hundred traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos import Chaos

KILLS = int(os.environ.get("DIST_CHECKS_CHAOS", "4"))
SEED = int(os.environ.get("DIST_CHECKS_CHAOS_SEED", "0"))


@pytest.mark.timeout(300 + 20 * KILLS)
def test_whatever_happens_ends_in_the_right_word(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path / "chaos", SEED)
    chaos.corrupt(max(20, KILLS // 2))
    chaos.kill(KILLS)
    chaos.leftovers()
    assert not any(chaos.seen.wrong.values()), chaos.seen.wrong
    assert sum(chaos.seen.kills.values()) == KILLS
    print(chaos.seen)
