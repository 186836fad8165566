"""`headrace sql`: an interactive shell, or statements from stdin."""

from __future__ import annotations

import sys

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, NodeUrlOption
from headrace.cli.query import ParameterOption
from headrace.cli.session import node_url
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.interruption import be_patient

PROMPT = "headrace=> "


def register(app: typer.Typer) -> None:
    """Add the command `sql`."""
    app.command()(sql)


@grouped
def sql(
    param: ParameterOption = None,
    node: NodeUrlOption = None,
    *,
    cluster: ClusterOptions,
    json_output: JsonOption = False,
) -> None:
    r"""An interactive SQL shell; \? lists its commands.

    Without a terminal, statements are read from stdin, such as `headrace sql < report.sql`. The first error ends them.
    """
    with run_command(json_output) as output:
        from headrace._parameters import typed_parameters
        from headrace.node_client import NodeClient
        from headrace.shell.shell import Shell
        from headrace.shell.statements import input_lines
        from headrace.shell.variables import Variables

        variables = Variables(typed_parameters(param or ()))
        shell = Shell(lambda: NodeClient(node_url(node, cluster)), output, variables)
        if not sys.stdin.isatty():
            shell.run_script(input_lines(sys.stdin))
            return
        if json_output:
            raise UsageInvalid("--json is for statements from stdin", action="headrace sql --json < report.sql")
        from headrace.shell.line_editor import line_editor

        output.note(rf"node {shell.connect().url}; \? lists commands, \q leaves")
        # From here on Ctrl-C ends a statement, and not the shell.
        be_patient()
        shell.interact(line_editor(PROMPT, shell.tables, output.note))
