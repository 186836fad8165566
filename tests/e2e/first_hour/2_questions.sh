# Questions: a file, parameters, an older answer, notebooks, scripts, and errors that name a way out.

echo 'SELECT pump FROM hour.pretty WHERE flow > $least' > question.sql
step 0 'p2' headrace query -f question.sql --param least=2
step 1 'no value for parameter $least' headrace query -f question.sql
step 2 'SQL is empty' headrace query ' '
step 0 'p1' headrace query 'SELECT pump FROM hour.pretty' --stale 60s --node "http://$address/"
step 1 'did you mean' headrace query 'SELECT pump FROM hour.prety' --node "$address"
step 2 'no.sql: no such file' headrace query -f no.sql
printf '%s\n' '\set least 2' 'SELECT pump,' '  $extra + 1 AS more FROM hour.pretty WHERE flow > $least;' '\d seconds' > report.sql
step 0 'pump' sh -c 'headrace sql --param extra=41 < report.sql'
case $output in *p2*42*BIGINT* | *p2*42*DOUBLE*) ;; *) echo "not the report: $output" && exit 1 ;; esac
# In Python a value is bound and never pasted; an answer is a table in a notebook, and pandas shares its memory.
step 0 '[]' python3 -c "
import headrace
with headrace.connect() as client:
    print(client.query('SELECT * FROM hour.pretty WHERE pump = \$name', {'name': \"' OR 1=1 --\"}).to_dicts())
    found = client.query('SELECT pump, flow FROM hour.pretty WHERE pump IN \$names ORDER BY pump', {'names': ['p1', 'p2']})
    print('<table' in found._repr_html_(), '<td>2.5</td>' in found._repr_html_())
    column, frame = found.to_arrow().column('flow').chunk(0), found.to_pandas(zero_copy=True)
    shared = frame['flow'].array.__arrow_array__().chunk(0)
    print('shared', shared.buffers()[1].address == column.buffers()[1].address, frame['flow'].sum())"
also 'True True' 'shared True 4.0'
# The same over HTTP: the kind of an error is a word, and what a query may not reach stays out of reach.
step 0 '"kind":"UnknownTable"' page /api/v1/query --get --data-urlencode 'q=FROM hour.prety'
step 0 '"kind":"FunctionRefused"' page /api/v1/query --get --data-urlencode "q=SELECT * FROM read_csv('/etc/passwd')"
step 0 '"flow":2.5' page /api/v1/query --json '{"sql": "SELECT flow FROM hour.pretty WHERE pump = $name", "parameters": {"name": "p2"}}'

# An interactive shell: statements of several lines, columns, records, timing, completion by Tab, history by Up.
export XDG_STATE_HOME="$PWD/state"
step 0 'p2' typed 100 '< headrace=>
> SELECT pump,\r flow FROM hour.pretty\rORDER BY flow;\r
< p2[\s\S]*2 rows, [0-9]+ ms[\s\S]*headrace=>
> \\d pretty\r
< flow +│ DOUBLE +│ field[\s\S]*headrace=>
> \\d prety\r
< did you mean hour\.pretty\?[\s\S]*headrace=>
> \\x on\r
< records: on[\s\S]*headrace=>
> SELECT pump FROM hour.pre\t
< tty
>  WHERE flo\t
< w
>  > 2;\r
< ── 1 ─[\s\S]*pump.* p2\n[\s\S]*1 row, [\s\S]*headrace=>
> \\timing\r
< timing: off[\s\S]*headrace=>
> SELECT nope FROM hour.pretty;\r
< error: .*nope[\s\S]*headrace=>
> SELECT 6 * 7 AS answer;\r
< 42[\s\S]*headrace=>
> \x1b[A\r
< 42[\s\S]*headrace=>
> \\q\r' headrace sql
step 0 'ORDER BY flow' cat "$XDG_STATE_HOME/headrace/sql_history"
unset XDG_STATE_HOME
