"""Result files are checked before the work, and appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penelope.runtime.outputs import OutputError, check_writable, write_whole


def put(path: Path) -> None:
    write_whole(path, lambda beside: none(beside.write_text("whole\n")))


def none(_written: int) -> None:
    pass


def refused(path: Path, says: str) -> None:
    """Both the check and the writing refuse, in one line, and nothing appears."""
    before = everything(path)
    for attempt in (check_writable, put):
        with pytest.raises(OutputError, match=says) as error:
            attempt(path)
        assert len(str(error.value).splitlines()) == 1
    assert everything(path) == before


def everything(path: Path) -> list[Path]:
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    return sorted(folder.iterdir())


def test_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    check_writable(path)
    assert not path.exists()
    put(path)
    assert path.read_text() == "whole\n"
    assert everything(path) == [path]


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o640)
    os.link(path, tmp_path / "open elsewhere")
    check_writable(path)
    assert path.read_text() == "old"
    put(path)
    assert path.read_text() == "whole\n"
    assert (tmp_path / "open elsewhere").read_text() == "old", "replaced, not written over"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_gets_the_permissions_of_any_new_file(
    mask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        put(tmp_path / "out.json")
    finally:
        assert os.umask(before) == mask
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == mode


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "data.json"
    target.parent.mkdir()
    link = tmp_path / "out.json"
    link.symlink_to(target)
    put(link)
    assert link.is_symlink()
    assert target.read_text() == "whole\n"


def test_a_link_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "out.json"
    link.symlink_to(tmp_path / "missing" / "data.json")
    refused(link, r"missing is no folder: create it")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    refused(tmp_path / "out", "is a folder: name a file in it")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing" / "out.json", "missing is no folder: create it, or name")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "out.json", "file is no folder: create it, or name")


def test_a_name_that_the_file_system_cannot_hold_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / ("x" * 300 + ".json"), r"cannot be written \(File name too long\)")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused_and_stays_one(device: str) -> None:
    """Replacing it, which the superuser may, would remove it from the machine."""
    path = Path(device)
    before = path.stat()
    for attempt in (check_writable, put):
        with pytest.raises(OutputError, match="is not a regular file: name another"):
            attempt(path)
    assert path.stat().st_ino == before.st_ino


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "is not a regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_permissions_are_respected(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("old")
    (tmp_path / "kept.json").chmod(0o444)
    refused(tmp_path / "kept.json", "exists and may not be written")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    refused(locked / "out.json", r"cannot be written \(Permission denied\)")


def test_a_folder_that_takes_no_files_is_refused_whoever_asks() -> None:
    """Permission bits say that the superuser may write there; the file system does not let him."""
    folder = Path("/proc/self")
    if not folder.is_dir():
        pytest.skip("needs /proc")
    with pytest.raises(OutputError, match=r"out\.json cannot be written"):
        check_writable(folder / "out.json")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_what_was_there(
    failure: BaseException, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def half(beside: Path) -> None:
        beside.write_text("ha")
        raise failure

    wanted = OutputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(wanted) as raised:
        write_whole(path, half)
    if wanted is OutputError:
        assert "cannot be written (No space left on device): name another" in str(raised.value)
    assert path.read_text() == "old"
    assert everything(path) == [path]


def test_the_file_beside_has_the_suffix_that_chooses_a_format(tmp_path: Path) -> None:
    seen: list[Path] = []
    write_whole(tmp_path / "out.svg", seen.append)
    assert (seen[0].suffix, seen[0].parent) == (".svg", tmp_path)
