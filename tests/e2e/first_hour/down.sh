#!/bin/sh
# The end of the first hour, in the folder of a running `headrace up`: what stops is named, and nothing is left to do.
set -u
parts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
. "$parts/steps.sh"
step 0 'stopping n1, n2, n3' headrace down
also 'stopping Kafka'
step 0 '' headrace down
case $output in *stopping*) echo "stopped twice: $output" && exit 1 ;; esac
step 1 "$address" headrace query 'SELECT 1' --node "$address"
