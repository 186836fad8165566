"""Puts one receiver together: its directory, its views, its threads, and its figures."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from headrace.connectors.files import DirectoryLock, create_directories, write_atomically
from headrace.connectors.log.kafka_group import KafkaGroupConsumer
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.decisions import Decisions, LogVerdicts
from headrace.consumers.sync.file_loader import FileLoader
from headrace.consumers.sync.group_members import GroupMembers
from headrace.consumers.sync.incoming import IncomingFiles
from headrace.consumers.sync.owner_log import OwnerLog
from headrace.consumers.sync.receiver import Receiver
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.receiver_metrics import receiver_text
from headrace.consumers.sync.settings import SyncSettings
from headrace.consumers.sync.topics import cluster_identity, ensure_sync_topics
from headrace.producers.cluster import Cluster
from headrace.schemas.errors import HeadraceError

OWNERS_DIRECTORY, DECIDED_DIRECTORY = "owners", "decided"
NAME_FILE, CENTRE_FILE = "receiver-id", "centre.json"
STAGE_THREADS_PER_LOAD = 3


class ReceiverForeign(HeadraceError):
    """The directory of a receiver of another centre."""


def consumer_group(topics: Topics) -> str:
    """The consumer group of a cluster's receivers."""
    return f"headrace-{topics.cluster}-sync"


class ReceiveProcess:
    """One receiver with its directory. `run` until `stop`, then `close`."""

    def __init__(
        self, cluster: Cluster, directory: Path, settings: SyncSettings, copies: int = 0, name: str = ""
    ) -> None:
        """`name` is that of the receiver in its group; by default one that its directory keeps.

        Raises DirectoryHeld, ReceiverForeign, SyncTopicUnsuitable, ViewUnwritable, and the errors of the log.
        """
        self._settings = settings
        self._opened = ExitStack()
        try:
            self._open(cluster, create_directories(directory), copies, name)
        except BaseException:
            self._opened.close()
            raise

    def _open(self, cluster: Cluster, directory: Path, copies: int, name: str) -> None:
        settings, log, topics = self._settings, cluster.log, cluster.topics
        lock = DirectoryLock(directory, purpose="directory of a receiver")
        self._opened.callback(lock.release)
        centre = cluster_identity(log, topics)
        check_centre(directory, topics.cluster, centre)
        self.name = name or _kept_name(directory)
        # Before the first file comes: else its group would seem to have no leader.
        cluster.watch.start()
        self.topics = ensure_sync_topics(log, topics, settings.partitions, copies)
        owners = OwnerLog(log, cluster.appender, topics, directory / OWNERS_DIRECTORY)
        self._opened.callback(owners.close)
        decided = DecidedFiles(log, topics, directory / DECIDED_DIRECTORY)
        self._opened.callback(decided.close)
        pool = ThreadPoolExecutor(settings.loads_max * STAGE_THREADS_PER_LOAD, thread_name_prefix="sync-stage")
        self._opened.callback(lambda: pool.shutdown(cancel_futures=True))
        self._disk = ReceiverDisk(directory, settings.retry_s)
        self._loader = FileLoader(cluster, owners, GroupMembers(cluster), pool, self._disk)
        self.receiver = Receiver(
            topics,
            centre,
            IncomingFiles(directory),
            decided,
            self._loader,
            Decisions(LogVerdicts(cluster.appender, topics), settings.loads_max, settings.retry_s),
            self._disk,
            settings,
        )
        self._topics = topics

    def run(self, bootstrap: str, kafka: Mapping[str, str]) -> None:
        """Receive until `stop`. Raises MemberReplaced, AccessDenied."""
        topics, receiver = self._topics, self.receiver
        consumer = KafkaGroupConsumer(
            bootstrap,
            consumer_group(topics),
            self.name,
            [topics.sync_manifest, topics.sync_chunk],
            receiver.assigned,
            receiver.revoked,
            kafka,
        )
        try:
            receiver.run(consumer)
        finally:
            consumer.close()

    def stop(self) -> None:
        """End `run`. Any thread, and a signal handler, may call it."""
        self.receiver.stop()

    def text(self) -> str:
        """The figures as Prometheus reads them."""
        figures = self.receiver.figures
        counters = {name: float(getattr(figures, name)) for name in type(figures).__slots__}
        counters["disk_full"] = float(self._disk.times_full)
        gauges = {**self.receiver.gauges(), "files_waiting": float(len(self._loader.waiting))}
        return receiver_text(self._topics.cluster, counters, gauges, self._settings.figures())

    def close(self) -> None:
        """Release everything."""
        self._opened.close()


def check_centre(directory: Path, cluster: str, identity: str) -> None:
    """Bind a directory to a centre; the first one counts. Raises ReceiverForeign."""
    path, wanted = directory / CENTRE_FILE, {"cluster": cluster, "identity": identity}
    if not path.exists():
        write_atomically(path, json.dumps(wanted, indent=1, sort_keys=True))
        return
    try:
        found = json.loads(path.read_text("utf-8"))
        known = str(found["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        raise ReceiverForeign(f"{path} cannot be read: {error!r}", action="give another --data-dir") from error
    if found != wanted:
        what = f"centre {cluster} before it was made again" if known == cluster else f"centre {known}"
        raise ReceiverForeign(
            f"{directory} is the directory of a receiver of {what}",
            action="give another --data-dir; what is in it comes from the topics of its centre",
        )


def _kept_name(directory: Path) -> str:
    path = directory / NAME_FILE
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex)
    return path.read_text("utf-8").strip()
