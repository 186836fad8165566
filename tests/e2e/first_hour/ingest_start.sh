# A topic that other programs produce to, ingested in the background while the parts between run; one JVM.

metrics=127.0.0.1:$(python3 -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
# Options that make no sense end before Spark starts.
step 2 'give `--table NAME` or `--table-column FIELD`' headrace ingest run --topic hour.raw --format json --database hour
step 2 'choose one of influx' headrace ingest run --topic hour.raw --format parquet --database hour --table raw
step 1 "no cluster 'nobody' on this Kafka" headrace ingest run --cluster nobody --topic hour.raw --format influx \
    --database hour
# In a process group of its own, as a shell with job control starts it: Ctrl-C goes to all of the group.
env --default-signal=INT PATH="$real_path" setsid headrace ingest run --topic hour.raw --format json --database hour --table raw \
    --tags pump --checkpoint deep/er/checkpoint --http "$metrics" >ingest.out 2>ingest.log &
ingest=$!
trap 'kill -KILL -$ingest 2>/dev/null' EXIT
wait_until grep -q "metrics at http://$metrics/metrics" ingest.log
# Nothing was read yet: the lag is unknown, and every counter is there.
step 0 'headrace_ingest_lag_seconds{cluster="headrace",topic="hour.raw"} -1.0' curl --silent "http://$metrics/metrics"
also 'headrace_ingest_rejected_lines_total{cluster="headrace",topic="hour.raw"} 0.0'
step 0 '3 produced' python3 -c "
from confluent_kafka import Producer
producer = Producer({'bootstrap.servers': '$kafka'})
for value in (b'{\"pump\": \"p1\", \"time\": \"2026-01-01T00:00:00Z\", \"flow\": 7.5}', b'not json', b'{\"pump\": \"p1\"}'):
    producer.produce('hour.raw', value)
print(3 - producer.flush(30), 'produced')"
