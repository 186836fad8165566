# What the ingest of ingest_start.sh logged, counted, served and wrote meanwhile.

answer '7.5' 'SELECT flow FROM hour.raw'
wait_until grep -q '^hour.raw: 1 row, 1 point, .* rows/s, .* lag 0 records, 0 s, 2 lines refused' ingest.log
step 0 '1 line refused: ' cat ingest.log
case $output in *'lag -1'* | *'-1 s'*) echo "a lag of -1: $output" && exit 1 ;; esac
[ "$(grep -c '^1 line refused: ' ingest.log)" -eq 2 ] || { cat ingest.log && exit 1; }
step 0 'headrace_ingest_rows_total{cluster="headrace",topic="hour.raw"} 1.0' curl --silent "http://$metrics/metrics"
also 'headrace_ingest_rejected_lines_total{cluster="headrace",topic="hour.raw"} 2.0'
# The whole message is among the dead letters.
step 0 "[b'not json', b'{\"pump\": \"p1\"}']" python3 -c "
from confluent_kafka import Consumer
consumer = Consumer({'bootstrap.servers': '$kafka', 'group.id': 'look', 'auto.offset.reset': 'earliest'})
consumer.subscribe(['dlq.hour.raw'])
print(sorted((message.value() for message in consumer.consume(2, 30)), reverse=True))
consumer.close()"
# Ctrl-C finishes what has begun, and prints the counts.
kill -INT "-$ingest"
wait "$ingest"
step 130 'stopping: ' sh -c "cat ingest.out ingest.log; exit $?"
also '1 row, 1 point in '
case $output in *Traceback*) echo "a traceback: $output" && exit 1 ;; esac
trap - EXIT
step 1 'checkpoint' headrace ingest run --topic hour.raw --format json --database other --table raw --tags pump \
    --checkpoint deep/er/checkpoint
[ "$(printf '%s\n' "$output" | wc -l)" -eq 2 ] || { echo "more than an error and a way out: $output" && exit 1; }
