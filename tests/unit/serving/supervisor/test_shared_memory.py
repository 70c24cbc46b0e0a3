# SPDX-License-Identifier: Apache-2.0
"""The removal of shared memory when no process of its owner lives, and never before."""

import os
import subprocess
import sys
from pathlib import Path

from serving.process.shared_memory import PREFIX, RegionOwner, remove_dead_regions


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_owner_removes_its_own_regions_and_no_others(tmp_path: Path) -> None:
    owner, other = RegionOwner(tmp_path), RegionOwner(tmp_path)
    for region in (owner, other):
        (tmp_path / f"{region.prefix}1").touch()
    owner.remove()
    assert names(tmp_path) == sorted([f"{other.prefix}1", f"{other.prefix}lock"])
    with other:
        pass
    assert names(tmp_path) == []


def test_regions_of_a_living_owner_are_left(tmp_path: Path) -> None:
    with RegionOwner(tmp_path) as owner:
        (tmp_path / f"{owner.prefix}1").touch()
        assert remove_dead_regions(tmp_path) == []
        assert len(names(tmp_path)) == 2


def test_regions_of_a_dead_owner_are_removed_with_its_lock(tmp_path: Path) -> None:
    owner = RegionOwner(tmp_path)
    (tmp_path / f"{owner.prefix}1").touch()
    (tmp_path / f"{PREFIX}of_somebody_else").touch()
    (tmp_path / "another_lock").touch()
    os.close(owner.descriptor)  # as the kernel does for a process that is killed
    assert remove_dead_regions(tmp_path) == [owner.prefix]
    assert names(tmp_path) == ["another_lock", f"{PREFIX}of_somebody_else"]


def test_a_process_that_was_given_the_descriptor_keeps_the_regions(tmp_path: Path) -> None:
    owner = RegionOwner(tmp_path)
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[owner.descriptor]) as child:
        os.close(owner.descriptor)
        assert remove_dead_regions(tmp_path) == []
        child.communicate(b"\n")
    assert remove_dead_regions(tmp_path) == [owner.prefix]


def test_a_lock_that_cannot_be_opened_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}1_ab_lock").symlink_to("/nowhere")  # nor is a link followed
    assert remove_dead_regions(tmp_path) == []
    assert names(tmp_path) == [f"{PREFIX}1_ab_lock"]
