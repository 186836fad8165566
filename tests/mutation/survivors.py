"""The mutants that no test notices, each with the reason."""

from __future__ import annotations

SURVIVORS: dict[str, str] = {
    "half_is_a_majority": "equivalent: with an even number of members the log counts as one more, so no count is a half",
    "headers_behind_a_lost_header_not_durable": "equivalent: a journal without its header is damage whatever is durable",
    "recovery_before_the_mark_is_durable": "equivalent: the health of a group refuses a recovery before the mark is durable",
    "drop_of_a_slice_that_ends_later": "equivalent: a segment is of one slice, and a drop ends where a slice does",
    "quarantine_moves_the_index_first": "equivalent: files without an index are damage as well, whichever is moved first",
    "position_passes_a_paused_topic": "the reader in memory never passes what it has not delivered; Kafka's may",
}
