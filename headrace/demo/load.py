"""A writer that keeps writing while a node is killed."""

from __future__ import annotations

import threading

import pyarrow as pa

import headrace
from headrace.demo.stage import DATABASE, Stage
from headrace.workload import cpu

TABLE = "cpu"
HOSTS = 200
ROWS_A_BATCH = 2_000
PAUSE_S = 0.05


class WriteLoad:
    """Writes batches of a cpu workload in a thread of its own until stopped, and keeps what was acknowledged."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.written: list[pa.Table] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> pa.Table:
        """Stop after the current batch and return every acknowledged row.

        Raises the error that ended the thread.
        """
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return pa.concat_tables(self.written, promote_options="default")

    def _run(self) -> None:
        workload = cpu(hosts=HOSTS, start_ns=1_767_225_600_000_000_000, duration_s=864_000, seed=3)
        cluster = self._stage.cluster
        try:
            with (
                headrace.connect(cluster.bootstrap, cluster.cluster) as client,
                client.writer(DATABASE, TABLE, workload.tags) as writer,
            ):
                for _, rows in workload.batches(ROWS_A_BATCH):
                    if self._stopping.is_set():
                        break
                    writer.write(rows)
                    # Only rows behind a flush count: the checks demand each of them exactly once.
                    writer.flush()
                    self.written.append(rows)
                    self._stopping.wait(PAUSE_S)
        except BaseException as error:
            self.error = error
