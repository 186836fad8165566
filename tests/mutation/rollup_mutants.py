"""Mutants of rollups: what they have of rows, which fragments they answer, and which of their files count."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

FILES, PLAN = "test_rollups.py", "test_rollup_plan.py"

ROLLUPS = (
    Mutant(
        "rollup_of_other_content_used",
        "store/rollup_encoding.py",
        ' or head["content_digest"] != content_digest:',
        ":",
        (FILES,),
    ),
    Mutant(
        "rollup_with_changed_bytes_used",
        "store/rollup_encoding.py",
        'head["digest"] != xxhash.xxh3_128_hexdigest(stream)',
        'head["digest"] == ""',
        (FILES,),
    ),
    Mutant(
        "rollup_of_times_that_sql_rounds",
        "store/rollup.py",
        "    if not _is_exact(rows.times):\n",
        "    if False:\n",
        (FILES,),
    ),
    Mutant(
        "hours_of_two_series_joined",
        "store/rollup.py",
        "        changed[begins] = True\n",
        "",
        (FILES,),
    ),
    Mutant(
        "minimum_is_nan",
        "store/rollup.py",
        "(np.fmin if kind is FieldType.FLOAT64 else np.minimum)",
        "np.minimum",
        (FILES,),
    ),
    Mutant(
        "sum_of_integers_overflows",
        "store/rollup.py",
        "    if bound <= np.iinfo(np.int64).max:\n",
        "    if True:\n",
        (FILES,),
    ),
    Mutant(
        "nulls_are_counted",
        "store/rollup_encoding.py",
        "    column = own if own in rollup.names else _OF_ROWS[kind]\n",
        "    column = _OF_ROWS[kind]\n",
        (FILES,),
    ),
    Mutant(
        "rollup_not_made_again",
        "store/rollup_files.py",
        "            self._request(entry)\n",
        "",
        (FILES,),
    ),
    Mutant(
        "rollup_of_a_removed_segment_stays",
        "store/compact_job.py",
        "    components.rollups.remove(names)\n",
        "",
        (FILES,),
    ),
    Mutant(
        "bound_behind_the_begin_of_an_hour",
        "query/rollup_plan.py",
        "value % HOUR_NS == 0",
        "value % 1 == 0",
        (PLAN,),
    ),
    Mutant(
        "upper_bound_is_included",
        "query/rollup_plan.py",
        'exp.LT: "this",',
        'exp.LTE: "this",',
        (PLAN,),
    ),
    Mutant(
        "buckets_with_an_origin",
        "query/rollup_plan.py",
        'given <= {"this", "expression"} and whole_hours',
        "whole_hours",
        (PLAN,),
    ),
    Mutant(
        "condition_of_a_field",
        "query/rollup_plan.py",
        "        _require(condition is None or self._of_hour(condition))\n",
        "",
        (PLAN,),
    ),
    Mutant(
        "filter_of_a_field",
        "query/rollup_plan.py",
        "        _require(all(self._of_hour(each) for each in kept))\n",
        "",
        (PLAN,),
    ),
)
