#!/bin/sh
# What a new user types in the first hour, good and bad, in the folder of a running `headrace up`.
#
# Every step names its exit code and a text that it prints; the first step that differs ends the script with 1. The
# parts share one cluster and run in this order; `first_hour/down.sh` is typed when nothing needs the cluster any more.
#
# Elsewhere, because a step would cost much more than it shows: segments in Spark (tests/spark/test_reader_matrix.py);
# directories of 0.1.0 (tests/spark/test_earlier_build.py); compose and the Kubernetes page (tests/unit/test_compose.py);
# the help of every command (tests/unit/headrace/cli/test_help.py); the page in a browser (make shots), and its
# scripts (tests/unit/serve/test_page.py).
set -u
parts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/first_hour
. "$parts/steps.sh"
. "$parts/ingest_start.sh"
. "$parts/1_data.sh"
. "$parts/2_questions.sh"
. "$parts/3_files_and_removal.sh"
. "$parts/4_page_and_metrics.sh"
. "$parts/5_terminals.sh"
. "$parts/6_settings_and_members.sh"
. "$parts/ingest_stop.sh"
. "$parts/7_failures.sh"
echo 'the first hour is over'
