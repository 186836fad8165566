"""Slots move between groups with stores in random schedules: rows, last rows and files are exact, after restarts too."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.replication.slot_stores import StoredCluster
from tests.unit.replication.test_slot_model import STEPS, WEIGHTS

STORED = STEPS | {
    "work": StoredCluster.work,
    "seal": StoredCluster.seal,
    "restart": StoredCluster.restart,
    "restore": StoredCluster.restore,
    "load": StoredCluster.load,
    "attach": StoredCluster.attach,
    "release": StoredCluster.release,
}
COMMANDS = st.lists(
    st.tuples(
        st.sampled_from([*WEIGHTS, *STORED, *("seal", "load", "work", "delete") * 2]),
        st.integers(0, 63),
        st.integers(0, 63),
    ),
    min_size=20,
    max_size=90,
)


@given(commands=COMMANDS)
@settings(max_examples=25, deadline=None)
def test_slots_and_their_files_move_in_any_schedule(commands: list[tuple[str, int, int]]) -> None:
    """Late rows and deletes keep their rank in the files of the new holder, and slots that left are shown to nobody."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-slots-"))
    cluster = StoredCluster(directory)
    try:
        for name, first, second in commands:
            STORED[name](cluster, first, second)
        cluster.finish()
    finally:
        cluster.close()
        shutil.rmtree(directory)
