# Files for other readers, and what goes: it is shown first, and needs a yes.

# Every file of a table has one type of time, and four readers find the same values in it.
step 0 'sealed' headrace seal
step 0 'pretty timestamp[us' python3 -c "
import glob, duckdb, pandas, polars, pyarrow.dataset
for table in ('pretty', 'finer'):
    files = glob.glob(f'.headrace/n1/segments/*/hour/{table}/*/*.parquet')
    arrow = pyarrow.dataset.dataset(files).to_table(['time', 'flow'])
    times = arrow.column('time').cast(pyarrow.timestamp('ns', 'UTC')).cast('int64').to_pylist()
    found = sorted(zip(times, arrow.column('flow').to_pylist()))
    frame = polars.read_parquet(files).select(polars.col('time').dt.timestamp('ns'), 'flow')
    assert found == sorted(frame.rows()), frame
    frame = pandas.concat(pandas.read_parquet(file) for file in files)
    assert found == sorted(zip((each.value for each in frame['time']), frame['flow'])), frame
    rows = duckdb.execute('SELECT epoch_ns(time), flow FROM read_parquet(\$files, union_by_name = true)', {'files': files})
    assert found == sorted(rows.fetchall())
    print(table, arrow.schema.field('time').type, found)"
also 'finer timestamp[ns' '(1767225600000000000, 1.5), (1767225600000000000, 2.5)' '(1767225600000000001, 1.0)'

step 0 '"rows": 1,' headrace delete --database hour --table pretty --tag pump=p1 --dry-run --json
also '"bytes": ' '"files": ' '"files_rewritten": '
answer 'true' 'SELECT sum(flow) = 4 AS whole FROM hour.pretty'
step 0 '' headrace delete --database hour --table pretty --tag pump=p1
answer '2.5' 'SELECT sum(flow) FROM hour.pretty'
step 2 'pretty' headrace delete --database hour --table prety --tag pump=p1
step 2 '--yes' headrace table drop hour.flat
step 0 '"rows": 1,' headrace table drop hour.flat --dry-run --json
step 0 '' headrace table drop hour.flat --yes
gone() { case $(ask 'FROM hour.flat') in *UnknownTable*) ;; *) return 1 ;; esac }
wait_until gone
step 2 'there is no table hour.flat' headrace table drop hour.flat --yes
step 0 'would go' headrace retention set hour.pretty 30d --dry-run
step 2 'is not between' headrace retention set hour.pretty 0s
