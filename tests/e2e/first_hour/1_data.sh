# Data that could be lost or misread without a word: units of time, repeated times, NaN, odd JSON, CSV and Parquet.

# Times: the unit is refused when it looks wrong, and a table keeps its own.
printf 'pump,time,flow\np1,1767225600,1.5\np2,1767225600,2.5\n' > seconds.csv
step 3 '--time-unit s' headrace write seconds.csv --database hour --table seconds --tags pump
also 'these look like seconds'
step 0 '2 rows' headrace write seconds.csv --database hour --table seconds --tags pump --time-unit s
answer '2026-01-01' 'SELECT min(time) FROM hour.seconds'
echo 'odd,pump=p1 flow=1 1767225600000' > milliseconds.lp
step 3 '--time-unit ms' headrace write milliseconds.lp --database hour
echo 'odd,pump=p1 flow=1 1767225600000000' > microseconds.lp
step 3 '--time-unit us' headrace write microseconds.lp --database hour
printf 'fine,pump=p1 flow=1 1767225600000000001\nfine,pump=p1 flow=2 1767225600000001000\n' > fine.lp
step 3 '1 line refused' headrace write fine.lp --database hour
step 2 'resolution' headrace write fine.lp --database hour --time-resolution ns
printf 'finer,pump=p1 flow=1 1767225600000000001\n' > finer.lp
step 0 '1 row, 1 point' headrace write finer.lp --database hour --time-resolution ns
answer '.000000001' 'SELECT time FROM hour.finer'
printf 'finest,pump=p1 flow=1 1767225600000000001\n' > finest.lp
step 0 '1 row' env HEADRACE__WRITE__TIME_RESOLUTION=ns headrace write finest.lp --database hour
# From Python as well; and SQL has one type of time, whatever a table keeps.
step 0 'TIMESTAMP_NS' python3 -c "
import headrace
with headrace.connect() as client:
    with client.writer('hour', 'python', tags=['pump'], resolution='ns') as writer:
        writer.write([{'time': 1767225600000000001, 'pump': 'p1', 'flow': 1.5}])
    times = 'SELECT typeof(time) AS kind, epoch_ns(time) % 1000 AS rest FROM'
    print(client.query(f'{times} hour.python UNION ALL {times} hour.fine').to_dicts())"
also "'rest': 1}" "'rest': 0}"
printf 'old,pump=p1 flow=1 86400000000000\nold,pump=p2 flow=1 8000000000000000000\n' > old.lp
step 3 '--any-time' headrace write old.lp --database hour
step 0 '2 rows' headrace write old.lp --database hour --any-time

# Rows of one series and time replace each other: not unnoticed, whatever the format.
printf 'site,time,flow\nnorth,2026-01-01T00:00:00Z,1\nsouth,2026-01-01T00:00:00Z,2\n' > sites.csv
python3 -c "
import pyarrow.csv, pyarrow.parquet
rows = pyarrow.csv.read_csv('sites.csv')
pyarrow.parquet.write_table(rows, 'sites.parquet')
open('sites.json', 'w').write('\n'.join('{\"site\": \"%s\", \"time\": 1767225600000000000, \"flow\": 1}' % name for name in ('a', 'b')))"
step 3 '--no-tags' headrace write sites.csv --database hour --table sites
step 3 '--no-tags' headrace write sites.json --database hour --table sites
step 3 '--no-tags' headrace write sites.parquet --database hour --table sites
step 0 '2 rows' headrace write sites.csv --database hour --table sites --tags site
step 0 '"replaced": 1' headrace write sites.csv --database hour --table flat --no-tags --json

# A NaN is a value, and counted.
printf 'nan,pump=p1 flow=nan 1767225600000000000\nnan,pump=p2 flow=1 1767225600000000000\n' > nan.lp
step 3 "field 'flow' is nan" headrace write nan.lp --database hour --reject-nan
step 0 '"nan": 1' headrace write nan.lp --database hour --json

# JSON over several lines: an array, and indented objects one after the other.
printf '[\n  {"pump": "p1",\n   "time": "2026-01-01T00:00:00Z",\n   "flow": 1.5},\n  {"pump": "p2", "time": "2026-01-01T00:00:00Z", "flow": 2.5}\n]\n' > pretty.json
step 0 '2 rows' headrace write pretty.json --database hour --table pretty --tags pump
answer 'true' 'SELECT sum(flow) = 4 AS whole FROM hour.pretty'
printf '{\n  "pump": "p1",\n  "time": "2026-01-01T00:00:00Z",\n  "flow": 1\n}\n{\n  "pump": "p2",\n  "flow": 2\n}\n' > objects.json
step 3 'line 6: ' headrace write objects.json --database hour --table objects --tags pump
also '1 row, 1 point' '1 line refused'

# Parquet: dates and decimals are cast; a column that no table can have is left out by its name, and not the file.
python3 -c "
import datetime, decimal, pyarrow, pyarrow.parquet
rows = {'time': [datetime.datetime(2026, 1, 1)], 'day': [datetime.date(2026, 1, 2)], 'price': [decimal.Decimal('125.25')], 'samples': [[1.0]]}
pyarrow.parquet.write_table(pyarrow.table(rows), 'mixed.parquet')"
step 3 "column 'samples' is left out: it has type list" headrace write mixed.parquet --database hour --table mixed
answer '2026-01-02,125.25' 'SELECT day, price FROM hour.mixed'
