"""What `headrace up` writes into a user's `headrace.toml`, and what it leaves alone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace.settings import SettingsInvalid, load_settings
from headrace.settings_file import update_settings_file

VALUES = {"cluster.name": "plant", "cluster.bootstrap": "127.0.0.1:25000"}
CHANGES = ['cluster.name = "plant"', 'cluster.bootstrap = "127.0.0.1:25000"']


def updated(directory: Path, text: str) -> str:
    """The file after the update, with the line ends it has on the disk."""
    path = directory / "headrace.toml"
    path.write_bytes(text.encode())
    update_settings_file(directory, VALUES)
    return path.read_bytes().decode()


def test_a_missing_file_is_created(tmp_path: Path) -> None:
    """The new file has these settings only; a second update finds nothing to do."""
    assert CHANGES == update_settings_file(tmp_path, VALUES)
    assert '[cluster]\nname = "plant"\nbootstrap = "127.0.0.1:25000"\n' == (tmp_path / "headrace.toml").read_text()
    before = (tmp_path / "headrace.toml").stat().st_mtime_ns
    assert [] == update_settings_file(tmp_path, VALUES)
    assert before == (tmp_path / "headrace.toml").stat().st_mtime_ns


def test_values_are_replaced_and_every_other_line_stays(tmp_path: Path) -> None:
    """Comments, order, spacing and other settings are kept; the change names the old value."""
    text = (
        "# mine\n[store]\nseal_rows = 5 # five\n\n[cluster] # here\n  bootstrap= 'kafka1:9092'  # prod # really\n"
        'slots = 7\n[kafka]\nbootstrap = "not this one"\n'
    )
    path = tmp_path / "headrace.toml"
    path.write_text(text)
    changes = update_settings_file(tmp_path, VALUES)
    assert [CHANGES[0], 'cluster.bootstrap = "127.0.0.1:25000" (was "kafka1:9092")'] == changes
    expected = text.replace("'kafka1:9092'", '"127.0.0.1:25000"').replace("# here\n", '# here\nname = "plant"\n')
    assert expected == path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        "[store]\nseal_rows = 5",
        "[cluster]",
        "\ufeff[cluster]\r\nslots = 7\r\n",
        "\ufeff",
        '[ cluster ]\nname = "a \\" b"\nbootstrap = ""\n',
        '[store]\nquery = 1\n\n[cluster.sub]\nx = 1\n\n[cluster]\nslots = 7\n[[list]]\nname = "x"\n',
    ],
)
def test_any_file_keeps_its_settings(tmp_path: Path, text: str) -> None:
    """The new text has the two settings, and everything that the old one had; a byte order mark and line ends stay."""
    new = updated(tmp_path, text)
    cluster = tomllib.loads(new.removeprefix("\ufeff").replace("\r\n", "\n"))["cluster"]
    assert ("plant", "127.0.0.1:25000") == (cluster["name"], cluster["bootstrap"])
    kept = [line for line in text.splitlines() if line and not line.startswith(("name", "bootstrap"))]
    assert kept == [line for line in new.splitlines() if line in kept]
    assert text.startswith("\ufeff") is new.startswith("\ufeff")
    assert ("\r\n" in text) is ("\r\n" in new)


@pytest.mark.parametrize(
    "text",
    [
        'cluster = {name = "x"}\n',
        'cluster.name = "x"\n',
        "[cluster]\nname = '''x\ny'''\n",
        "[cluster\n",
        "cluster = 5\n",
        'description = """\n[cluster]\n"""\n',
    ],
)
def test_a_file_that_cannot_be_edited_line_by_line_is_left_alone(tmp_path: Path, text: str) -> None:
    """The error names what to set, and the file has every byte that it had."""
    with pytest.raises(SettingsInvalid, match="was not updated") as raised:
        updated(tmp_path, text)
    assert all(change in raised.value.action for change in CHANGES)
    assert text == (tmp_path / "headrace.toml").read_text()


def test_a_file_that_is_no_text_is_left_alone(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are not replaced."""
    (tmp_path / "headrace.toml").write_bytes(b"# \xff\n")
    with pytest.raises(SettingsInvalid):
        update_settings_file(tmp_path, VALUES)
    assert b"# \xff\n" == (tmp_path / "headrace.toml").read_bytes()


def test_what_is_written_is_what_commands_read(tmp_path: Path) -> None:
    """The settings of the next command in this folder are those that were written."""
    update_settings_file(tmp_path, VALUES)
    settings = load_settings(environment={}, directory=tmp_path)
    assert ("plant", "127.0.0.1:25000") == (settings.cluster.name, settings.cluster.bootstrap)
